"""Which implementation runs a call on a device of this machine."""

from __future__ import annotations

import dataclasses

from kbench.core import AUTO, INJECTED, Device, InvalidEnvironment, OpCall, Problem, Unsupported
from kbench.kernels import best, implementation, interpreted, runnable_on

from .devices import DeviceMap

# Kernels that only a GPU has: on a device that is an alias of the CPU something of the CPU's stands in for them, unless
# they are interpreted there.
_GPU_ONLY = ("marlin", "triton")

# What leaves out the experts that a GPU has not, and runs on the CPU too: native kernels cannot.
_MASKING = "torch"


class Choice:
    """Chooses for the devices of ``devices``.

    Attributes:
        stand_ins: implementations that a rehearsal replaces, with what stands in for them.
    """

    def __init__(self, devices: DeviceMap) -> None:
        self.devices = devices
        self.stand_ins: dict[str, str] = {}

    def best(self, problem: Problem, device: Device) -> str:
        """The best implementation on ``device``; of another host's device, that is for it to say.

        Raises:
            InvalidEnvironment: the machine has no such device.
        """
        self.devices.check(device)
        return best(problem, self.devices.physical(device)) if self.devices.is_local(device) else AUTO

    def runnable(self, call: OpCall) -> OpCall:
        """``call`` with an implementation that runs it here.

        An implementation made for matrices may be named for a module that also rotates or adds; those calls go to the
        best one. A matrix that it cannot take is an error: something slower than what was asked for would run
        unnoticed.

        Raises:
            InvalidEnvironment: a device or an implementation that this machine does not have.
            Unsupported: a matrix that the implementation does not take.
        """
        self.devices.check(call.device)
        if call.op == "transfer":
            self.devices.check(Device.parse(call.problem.text("src")))
        if call.op == "transfer" or not self.devices.is_local(call.device):
            return call
        physical, where = self.devices.physical(call.device), f"{call.module}: {call.op}"
        if call.op == INJECTED:
            if physical.kind != "cpu":
                raise Unsupported(f"operators of your own on {call.device}", where=where, accepted="cpu")
            return call
        if call.implementation in _GPU_ONLY and call.device.kind != "cpu":
            if physical.kind != "cpu" or interpreted():
                return self._on_gpu(call, where)
            stand_in = _MASKING if call.attrs.get("masked") else best(call.problem, physical)
            self.stand_ins[call.implementation] = stand_in
            return dataclasses.replace(call, implementation=stand_in)
        if call.attrs.get("masked") and call.implementation.startswith("cpu."):  # the best that an alias has
            return dataclasses.replace(call, implementation=_MASKING)
        asked = implementation(call.implementation)
        runnable = runnable_on(asked, physical)
        if not runnable.ok:
            raise InvalidEnvironment(f"{asked.name} does not run here: {runnable.reason}", where=where)
        supported = asked.supports(call.problem)
        if supported.ok:
            return call
        replacement = best(call.problem, physical)
        if call.weights and call.op != "rms_norm":
            raise Unsupported(
                f"{asked.name} does not take {call.problem.key}: {supported.reason}",
                where=where,
                todo=f"use {replacement} or auto for it",
            )
        return dataclasses.replace(call, implementation=replacement)

    def _on_gpu(self, call: OpCall, where: str) -> OpCall:
        """``call`` on our GPU kernels, or on torch where it has no matrix that they take."""
        asked = implementation(call.implementation)
        if not asked.runnable().ok:
            raise InvalidEnvironment(f"{asked.name} does not run here: {asked.runnable().reason}", where=where)
        if asked.supports(call.problem).ok:
            return call
        return dataclasses.replace(call, implementation="torch")
