# SPDX-License-Identifier: Apache-2.0
"""System calls of a container: deploy/seccomp/forebay.json, and the stricter list that stands for a
runtime's default.

Both come from systemd's sets, by way of the unit's own SystemCallFilter: what the service may do on
a host it may do in a container, and what container engines refuse to all they refuse here, too.
`tests/deploy/render --write` makes the file.
"""

import errno
import functools
import json
import re

from conftest import made
from forebay import ROOT

FILE = ROOT / "deploy/seccomp/forebay.json"
UNIT = ROOT / "deploy/systemd/forebay.service"
RINGS = ["io_uring_enter", "io_uring_register", "io_uring_setup"]
# Between the filter and the program a runtime becomes the container's user; without capabilities
# nobody else can.
OF_RUNTIMES = {"@setuid", "capset", "prctl", "execve", "setgroups", "setgroups32"}
# `prepare` gives a folder to its owner; that it may is a capability's matter. Whether a page is in
# memory (cachestat) is younger than some sets.
OF_FOREBAY = {"@chown", "cachestat"}
# Calls that the sets have and default profiles of container engines lack: keys and memory of
# others, other namespaces, another CPU's ways. Forebay needs none of it.
NOT_OF_CONTAINERS = {
    "@keyring",
    "personality",
    "kcmp",
    "setns",
    "unshare",
    "mbind",
    "get_mempolicy",
    "set_mempolicy",
    "set_mempolicy_home_node",
    "migrate_pages",
    "move_pages",
    "lookup_dcookie",
    "process_madvise",
    "pidfd_getfd",
    "process_vm_readv",
    "process_vm_writev",
    "userfaultfd",
    "clone",
    "clone3",
}
NAMESPACES = 0x7E020000  # CLONE_NEW*: in clone's flags
ENTRY = {"x86_64": ["SCMP_ARCH_X86_64"], "aarch64": ["SCMP_ARCH_AARCH64"]}


@functools.cache
def expanded(names):
    """The calls in a set of names, those of systemd's sets (@name) among them."""
    out = set()
    for name in names:
        if name.startswith("@"):
            lines = made("systemd-analyze", "--no-pager", "syscall-filter", name).splitlines()[1:]
            inside = [word for line in lines if (word := line.strip()) and not word.startswith("#")]
            out |= expanded(frozenset(inside))
        else:
            out.add(name)
    return frozenset(out)


def allowed():
    """Of the unit: what it adds, less what it takes away; then what a runtime needs and no
    container gets."""
    out = set()
    for minus, words in re.findall(r"^SystemCallFilter=(~?)(.*)$", UNIT.read_text(), re.M):
        calls = expanded(frozenset(words.split()))
        out = out - calls if minus else out | calls
    return (out | expanded(frozenset(OF_RUNTIMES | OF_FOREBAY))) - expanded(
        frozenset(NOT_OF_CONTAINERS)
    )


def profile(otherwise="SCMP_ACT_ERRNO", rings=None):
    """As runc, containerd, CRI-O and Docker read it. Threads come by clone: clone3, whose flags no
    filter sees, is unknown, and glibc goes back to clone. RINGS: with what io_uring's calls fail,
    None: they do not."""
    out = {"defaultAction": otherwise}
    if otherwise == "SCMP_ACT_ERRNO":
        out["defaultErrnoRet"] = errno.EPERM
    out["architectures"] = [name for names in ENTRY.values() for name in names]
    out["syscalls"] = [
        {"names": sorted(allowed() - set(RINGS)), "action": "SCMP_ACT_ALLOW"},
        {
            "names": ["clone"],
            "action": "SCMP_ACT_ALLOW",
            "args": [{"index": 0, "value": NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}],
        },
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
        {"names": RINGS, "action": "SCMP_ACT_ERRNO", "errnoRet": rings}
        if rings
        else {"names": RINGS, "action": "SCMP_ACT_ALLOW"},
    ]
    return out


def strict(rings=errno.EPERM):
    """A stand-in for a runtime's default, and stricter than any: a call that is in no list ends the
    process. So nothing that Forebay needs is refused in silence."""
    return profile("SCMP_ACT_KILL_PROCESS", rings)


def text():
    return json.dumps(profile(), indent=1) + "\n"
