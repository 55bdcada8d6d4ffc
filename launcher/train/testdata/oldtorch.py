"""Imported before a transformers that wants torch 2, gives torch 1.13 (Debian 12) the
names which that one needs to open a model on the CPU and save it. With torch 2 it does nothing.
"""
import sys
import types

import torch
import torch.distributed


def module(name, **members):
    made = types.ModuleType(name)
    vars(made).update(members)
    sys.modules[name] = made
    parent, _, last = name.rpartition(".")
    setattr(sys.modules[parent], last, made)


def named_parameters(self, prefix="", recurse=True, remove_duplicate=True):
    modules = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
    seen = set()
    for name, m in modules:
        for key, p in m._parameters.items():
            if p is not None and not (remove_duplicate and p in seen):
                seen.add(p)
                yield name + "." * bool(name) + key, p


old_load = torch.nn.Module.load_state_dict


def load_state_dict(self, state_dict, strict=True, assign=False):
    if not assign:
        return old_load(self, state_dict, strict)
    for key, value in state_dict.items():  # assigned are a module's own tensors alone
        if key in self._parameters:
            self._parameters[key] = torch.nn.Parameter(value, requires_grad=value.is_floating_point())
        else:
            self._buffers[key] = value


if not hasattr(torch, "compiler"):
    module("torch.compiler", disable=lambda f=None, recursive=True: f or (lambda g: g), is_compiling=lambda: False)
    module("torch.distributed.tensor")
    torch.float8_e4m3fn = torch.float8_e5m2 = None
    torch.nn.Module.named_parameters = named_parameters
    torch.nn.Module.load_state_dict = load_state_dict
