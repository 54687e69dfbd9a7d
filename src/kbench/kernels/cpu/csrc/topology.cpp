#include "topology.h"

#include <dirent.h>
#include <sched.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <numeric>
#include <set>
#include <sstream>
#include <stdexcept>

namespace kbench {
namespace {

// More processors than any machine has: a bound for what a file may ask for.
constexpr int kMaxCpu = 1 << 16;

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "0-3,8,10-11"; empty for anything else.
std::vector<int> cpu_list(const std::string& text) {
  std::vector<int> cpus;
  std::istringstream in(text);
  for (std::string range; std::getline(in, range, ',');) {
    int begin = 0, end = 0;
    char dash = 0, rest = 0;
    std::istringstream part(range);
    if (!(part >> begin)) return {};
    if (!(part >> dash)) {
      end = begin;
    } else if (dash != '-' || !(part >> end) || part >> rest) {
      return {};
    }
    if (begin < 0 || end < begin || end >= kMaxCpu) return {};
    for (int cpu = begin; cpu <= end; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

// "Node 0 MemTotal:       24683656 kB" of the node's meminfo, in bytes.
int64_t memory_total(const std::string& path) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    int64_t kibibytes = 0;
    if (word == "MemTotal:" && file >> kibibytes && kibibytes >= 0 && kibibytes < (int64_t{1} << 50)) {
      return kibibytes * 1024;
    }
  }
  return 0;
}

}  // namespace

std::vector<MemoryNode> memory_nodes(const std::string& root) {
  const std::string folder = root + "/sys/devices/system/node";
  std::vector<MemoryNode> nodes;
  DIR* directory = opendir(folder.c_str());
  if (directory == nullptr) return nodes;
  while (const dirent* entry = readdir(directory)) {
    const std::string name = entry->d_name;
    const bool digits = name.size() > 4 && name.size() < 10 && name.compare(0, 4, "node") == 0 &&
                        std::all_of(name.begin() + 4, name.end(), [](unsigned char c) { return std::isdigit(c); });
    if (!digits) continue;
    MemoryNode node;
    node.id = std::stoi(name.substr(4));
    node.cpus = cpu_list(first_line(folder + "/" + name + "/cpulist"));
    node.memory_bytes = memory_total(folder + "/" + name + "/meminfo");
    if (!node.cpus.empty()) nodes.push_back(std::move(node));  // memory alone (CXL) runs no threads
  }
  closedir(directory);
  std::sort(nodes.begin(), nodes.end(), [](const MemoryNode& a, const MemoryNode& b) { return a.id < b.id; });
  return nodes;
}

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;  // over CPU_SETSIZE processors: run unpinned
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

std::string core_of(int cpu, const std::string& root) {
  const std::string topology = root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
  const std::string siblings = first_line(topology + "thread_siblings_list");
  return siblings.empty() ? std::to_string(cpu) : siblings;
}

std::vector<int> place_threads(int threads, const std::vector<int>& allowed, int node, const std::string& root) {
  // The allowed processors of each node: one of each core first, then the siblings.
  struct Group {
    std::vector<int> cpus;
    int64_t cores = 0;
  };
  std::vector<Group> groups;
  std::set<int> placed;
  std::set<std::string> cores;
  const auto add_group = [&](const std::vector<int>& cpus) {
    Group group;
    std::vector<int> siblings;
    for (int cpu : cpus) {
      if (std::find(allowed.begin(), allowed.end(), cpu) == allowed.end() || !placed.insert(cpu).second) continue;
      (cores.insert(core_of(cpu, root)).second ? group.cpus : siblings).push_back(cpu);
    }
    group.cores = static_cast<int64_t>(group.cpus.size());
    group.cpus.insert(group.cpus.end(), siblings.begin(), siblings.end());
    if (!group.cpus.empty()) groups.push_back(std::move(group));
  };
  for (const MemoryNode& n : memory_nodes(root)) {
    if (node < 0 || n.id == node) add_group(n.cpus);
  }
  if (node < 0) {
    add_group(allowed);  // those of no node that is known
  } else if (groups.empty()) {
    throw std::invalid_argument("memory node " + std::to_string(node) +
                                " has no processor that this process may run on");
  }

  int64_t all_cores = 0, all_cpus = 0;
  for (const Group& group : groups) {
    all_cores += group.cores;
    all_cpus += static_cast<int64_t>(group.cpus.size());
  }
  std::vector<int> cpus;
  if (node >= 0 && threads > all_cpus) {
    throw std::invalid_argument(std::to_string(threads) + " threads on memory node " + std::to_string(node) +
                                "; accepted: 1 to its " + std::to_string(all_cpus) + " processors");
  }
  if (threads > all_cpus || (threads == 1 && node < 0)) {
    cpus.assign(static_cast<size_t>(threads), -1);
    return cpus;
  }
  const bool siblings = threads > all_cores;
  const int64_t all = siblings ? all_cpus : all_cores;
  int64_t before = 0;
  for (const Group& group : groups) {
    const int64_t size = siblings ? static_cast<int64_t>(group.cpus.size()) : group.cores;
    const int64_t begin = threads * before / all, end = threads * (before + size) / all;
    cpus.insert(cpus.end(), group.cpus.begin(), group.cpus.begin() + (end - begin));
    before += size;
  }
  return cpus;
}

}  // namespace kbench
