# SPDX-License-Identifier: Apache-2.0
"""The Pod Security profile "restricted", as a list of what a pod does that it forbids, and what
Forebay itself knows: the keys, variables and flags that a manifest may name."""

import functools
import re
import subprocess

import charts
from conftest import made
from forebay import binary

VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
}


def violations(spec):
    """Returns a pod's violations of "baseline" and "restricted" of Kubernetes 1.37."""
    out = []
    pod = spec.get("securityContext", {})
    out += [f"{name}: true" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    for volume in spec.get("volumes", []):
        out += [f"volume {volume['name']}: {kind}" for kind in set(volume) - {"name"} - VOLUMES]
    out += [
        f"sysctl {entry['name']}"
        for entry in pod.get("sysctls", [])
        if entry["name"] not in SYSCTLS
    ]
    for container in charts.containers_of(spec) + spec.get("ephemeralContainers", []):
        own = container.get("securityContext", {})
        both = {**pod, **own}
        name = container["name"]
        capabilities = own.get("capabilities", {})
        wrong = {
            "privileged": own.get("privileged"),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is not False,
            "capabilities are not dropped": "ALL" not in capabilities.get("drop", []),
            f"adds {capabilities.get('add')}": set(capabilities.get("add", []))
            - {"NET_BIND_SERVICE"},
            "runAsNonRoot": both.get("runAsNonRoot") is not True,
            "runAsUser: 0": both.get("runAsUser") == 0,
            "seccompProfile": both.get("seccompProfile", {}).get("type")
            not in ("RuntimeDefault", "Localhost"),
            "procMount": own.get("procMount", "Default") != "Default",
            "appArmorProfile": both.get("appArmorProfile", {}).get("type", "RuntimeDefault")
            not in ("RuntimeDefault", "Localhost"),
            "seLinuxOptions": {"user", "role"} & set(both.get("seLinuxOptions", {})),
            "hostProcess": both.get("windowsOptions", {}).get("hostProcess"),
            "hostPort": [port for port in container.get("ports", []) if port.get("hostPort")],
            "a probe or hook names a host": [
                1
                for hook in hooks(container)
                if any(hook.get(k, {}).get("host") for k in ("httpGet", "tcpSocket"))
            ],
        }
        out += [f"container {name}: {what}" for what, is_so in wrong.items() if is_so]
    return out


def hooks(container):
    return [
        container[p] for p in ("startupProbe", "readinessProbe", "livenessProbe") if p in container
    ] + list(container.get("lifecycle", {}).values())


# --- What Forebay knows -------------------------------------------------------------------------


@functools.cache
def keys():
    """Every key of the option table."""
    found = set(re.findall(r"^\| `([a-z0-9_.]+)` \|", made(binary(), "config", "docs"), re.M))
    assert len(found) > 50
    return found


def variables():
    """Returns all environment variables: those of keys, and the three that are no keys."""
    return {"FOREBAY_" + key.upper().replace(".", "_") for key in keys()} | {
        "FOREBAY_CONFIG",
        "FOREBAY_ADMIN",
        "FOREBAY_ADMIN_TOKEN",
    }


@functools.cache
def flags(command):
    """Returns the flags of one command, or None if there is no such command."""
    done = subprocess.run(
        [binary(), "help", command], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode != 0:
        return None
    found = set(re.findall(r"^  (--?[a-zA-Z-]+)", done.stdout, re.M))
    return found | ({"--" + key for key in keys()} if "--KEY VALUE" in done.stdout else set())


def is_forebay(container):
    return re.fullmatch(r"(.*/)?forebay([:@].*)?", container.get("image", "")) is not None


def unknown(container):
    """Returns the flags and variables that a container of ours names and no option table has."""
    out = [
        f"variable {entry['name']}"
        for entry in container.get("env", [])
        if entry["name"].startswith("FOREBAY_") and entry["name"] not in variables()
    ]
    words = container.get("command", [])[1:] + container.get("args", [])
    known = flags(words[0]) if words else set()
    if known is None:
        return [*out, f"command {words[0]}"]
    return out + [
        f"flag {word} of {words[0]}"
        for word in words[1:]
        if word.startswith("-") and word.split("=")[0] not in known
    ]
