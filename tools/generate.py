"""Writes the lists of policies, vendors, resources, variables, flags and metrics in the chart and the docs, from the
code, and wherever it is named, the version and the address of the project.

    python -m tools.generate            write them
    python -m tools.generate --check    write nothing; say which files differ, and fail

Markdown has marked blocks, `<!-- generated: NAME -->` to `<!-- end -->`; what is between them is replaced. A file that
lost its mark is an error, so that a list cannot go stale unseen.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tessera import __version__
from tessera.core.policies import POLICIES
from tessera.monitor.settings import TABLE as MONITOR
from tessera.node.settings import TABLE as DEVICE_PLUGIN
from tessera.scheduler.admission.pod_admission import RESERVED_PREFIX, WISH_PREFIX, WISHES, reserved_keys
from tessera.scheduler.settings import TABLE as SCHEDULER
from tessera.services.settings_table import Group, Setting
from tessera.services.value_types import FlagKind
from tessera.vendors.base import Family, Switches, Vendor
from tessera.vendors.downward_api import ProtectedVariables
from tessera.vendors.nvidia.downward_api import MAX_DEVICES
from tessera.vendors.registry import build_vendors, families
from tessera.wire.device_config import dump_device_config
from tools.metrics import DescribedMetric, agent_metrics, monitor_metrics, scheduler_metrics

ROOT = Path(__file__).resolve().parents[1]
CHART = "charts/tessera"

CHIP_SECTIONS = {"vnpus": "ascend", "iluvatars": "iluvatar"}
"""sections that list chips, and what the chart calls their vendor"""
OWN_TEMPLATES = ("nvidia", "iluvatar", *CHIP_SECTIONS)
"""sections that the chart writes by a template of their own"""
OWN_VALUES = ("nvidia", "mthreads", "ascend", "iluvatar")
"""vendors with values beyond those that all have"""

HAMI_VALUES: Mapping[tuple[str, str], str] = {
    ("cambricon", "resourceCountName"): "mluResourceName",
    ("cambricon", "resourceMemoryName"): "mluResourceMem",
    ("cambricon", "resourceCoreName"): "mluResourceCores",
    ("hygon", "resourceCountName"): "dcuResourceName",
    ("hygon", "resourceMemoryName"): "dcuResourceMem",
    ("hygon", "resourceCoreName"): "dcuResourceCores",
    ("metax", "resourceVCountName"): "metaxResourceName",
    ("metax", "resourceVMemoryName"): "metaxResourceMem",
    ("metax", "resourceVCoreName"): "metaxResourceCore",
    ("metax", "sgpuTopologyAware"): "metaxsGPUTopologyAware",
    ("enflame", "resourceNameDRSGCU"): "enflameResourceNameDRSGCU",
    ("enflame", "resourceNameGCUMemory"): "enflameResourceNameGCUMemory",
    ("enflame", "resourceNameGCUCore"): "enflameResourceNameGCUCore",
    ("kunlun", "resourceCountName"): "kunlunResourceName",
    ("kunlun", "resourceVCountName"): "kunlunResourceVCountName",
    ("kunlun", "resourceVMemoryName"): "kunlunResourceVMemoryName",
    ("vastai", "resourceCountName"): "vastaiResourceName",
    ("biren", "resourceCountName"): "birenResourceName",
}
"""keys for which HAMi's chart has a value; a vendor that HAMi does not support needs none"""


class GenerateError(Exception):
    """A file lacks the block that should be replaced."""


# -- what the code knows


def node_policies() -> list[str]:
    return [name for name, policy in POLICIES.items() if policy.nodes is not None]


def card_policies() -> list[str]:
    return [name for name, policy in POLICIES.items() if policy.cards is not None]


def chart_vendors() -> list[str]:
    """The vendors by the names of the chart's values."""
    return sorted({chart_name(family) for family in families()})


def chart_name(family: Family) -> str:
    return CHIP_SECTIONS.get(family.section, family.section)


def vendor_rows(cells: Callable[[Family, Vendor], tuple[str, ...]]) -> list[tuple[str, ...]]:
    """A row for every vendor, sorted; all chips of a maker as one, called <chip>."""
    found: dict[tuple[str, ...], None] = {}
    for family in families():
        for vendor in family.build(family.chart, Switches(ascend=True, iluvatar=True)):
            chip = vendor.key if family.section in CHIP_SECTIONS else "<chip>"
            found[tuple(cell.replace(chip, "<chip>") for cell in cells(family, vendor))] = None
    return sorted(found)


# -- Markdown


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["|" + "|".join(f" {cell} " if cell else " " for cell in row) + "|" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def code(text: str) -> str:
    """Code inside a table cell, where a bar must be escaped."""
    return f"`{text}`".replace("|", "\\|") if text else ""


def policy_table() -> str:
    rows = [
        (code(name), yes(policy.nodes), yes(policy.cards), str(policy.summary)) for name, policy in POLICIES.items()
    ]
    return table(("policy", "for nodes", "for cards", "what it does"), rows)


def yes(value: object) -> str:
    return "" if value is None else "yes"


def resource_table() -> str:
    def cells(family: Family, vendor: Vendor) -> tuple[str, ...]:
        names = vendor.names
        others = () if family.section in CHIP_SECTIONS else names.others
        title = f"{family.title} ({code(chart_name(family))})"
        return title, *map(code, (names.count, names.memory, names.cores)), ", ".join(map(code, others))

    return table(("vendor (in the chart)", "count", "memory", "cores", "other"), vendor_rows(cells))


def annotation_table() -> str:
    def cells(family: Family, vendor: Vendor) -> tuple[str, ...]:
        keys = vendor.keys
        registration = code(keys.register) or "from the node's capacity"
        strings = keys.to_allocate.removesuffix("to-allocate") + "…" if keys.to_allocate else keys.allocated
        return family.title, code(vendor.key), registration, *map(code, (keys.handshake, strings, keys.lock))

    head = ("vendor", "word", "registration on the node", "handshake", "device strings", "lock")
    return table(head, vendor_rows(cells))


def flag_tables(settings: Sequence[Setting]) -> str:
    """One table for each heading of `--help`; hidden flags are left out."""
    parts = []
    for group in Group:
        rows = [flag_row(each) for each in settings if each.group is group and not each.hidden]
        if rows:
            parts.append(f"#### {group.value}\n\n" + table(("flag", "default", "variable", "meaning"), rows))
    return "\n\n".join(parts)


def flag_row(setting: Setting) -> tuple[str, str, str, str]:
    names = [f"--{name}" for name in setting.names] + ([f"-{setting.short}"] if setting.short else [])
    written = names[0] if setting.type.kind is FlagKind.SWITCH else f"{names[0]} {setting.type.metavar}"
    default = "needed" if setting.needed else setting.shown_default
    default = default if setting.default_text or setting.needed else code(default)
    meaning = setting.help.replace("|", "\\|").replace("*", "\\*")
    return ", ".join([code(written), *map(code, names[1:])]), default, ", ".join(map(code, setting.env)), meaning


def metric_table(metrics: Iterable[DescribedMetric]) -> str:
    rows = [(code(name), kind, text.replace("|", "\\|").replace("*", "\\*")) for name, kind, text in metrics]
    return table(("metric", "kind", "meaning"), rows)


def with_blocks(**blocks: str) -> Callable[[str], str]:
    """Replaces marked blocks; `_` in a name is written as a blank."""

    def write(text: str) -> str:
        for name, content in blocks.items():
            start = f"<!-- generated: {name.replace('_', ' ')} -->\n"
            pattern = re.compile(f"({re.escape(start)}).*?(<!-- end -->)", re.DOTALL)
            text = replaced(pattern, text, content + "\n", what=start.strip())
        return text

    return write


def replaced(pattern: re.Pattern[str], text: str, content: str, *, what: str) -> str:
    """The text with the content between the two groups of the only match."""
    found, count = pattern.subn(lambda match: f"{match[1]}{content}{match[2]}", text)
    if count != 1:
        raise GenerateError(f"{what}: found {count} times, expected once")
    return found


# -- version and address

VERSION = re.compile(
    r"(?<=\btessera[: ])\d+\.\d+\.\d+|(?<=\btessera_gpu-)\d+\.\d+\.\d+|(?<=VERSION=)\d+\.\d+\.\d+"
    r"|(?<=--version )\d+\.\d+\.\d+|(?<=/download/v)\d+\.\d+\.\d+|(?<=refs/tags/v)\d+\.\d+\.\d+"
    r"|(?<=^version: )\S+|(?<=^appVersion: )\S+",
    re.MULTILINE,
)
"""where a file names the version: tags of image and chart, names of wheels, build arguments, outputs, the chart"""
OWNER = re.compile(
    r"(?<=ghcr\.io/)[\w-]+(?=/(?:charts/)?tessera)|(?<=imageRegistry=ghcr\.io/)[\w-]+|(?<=@)[\w-]+(?=/tessera-)"
)
"""where it names the organisation alone: images, charts, teams"""
ADDRESS = re.compile(r"https://github\.com/[\w.-]+/tessera(?![\w-])")


def address() -> str:
    """The project's address, from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["urls"]["Source"])


def release(text: str) -> str:
    """A file that names the version, the address or both."""
    text, versions = VERSION.subn(__version__, text)
    text, addresses = ADDRESS.subn(address(), text)
    text, owners = OWNER.subn(address().split("/")[-2], text)
    if not versions and not addresses and not owners:
        raise GenerateError("names neither the version nor the address of the project any more")
    return text


# -- the chart


def values_schema(text: str) -> str:
    schema = json.loads(text)
    properties = schema["properties"]
    policies = properties["scheduler"]["properties"]["defaultSchedulerPolicy"]["properties"]
    words = "|".join(card_policies())
    policies["nodeSchedulerPolicy"] = {"enum": node_policies()}
    policies["gpuSchedulerPolicy"] = {"type": "string", "pattern": f"^({words})( *, *({words}))*$"}
    vendors = properties["devices"]["properties"]
    plain: dict[str, Any] = {"$ref": "#/definitions/vendor"}
    properties["devices"]["properties"] = {name: vendors.get(name, plain) for name in chart_vendors()}
    return json.dumps(schema, indent=2) + "\n"


def values(text: str) -> str:
    comments = {
        "nodeSchedulerPolicy": f"one of {', '.join(node_policies())}",
        "gpuSchedulerPolicy": f"one of {', '.join(card_policies())}, or a comma list",
    }
    for key, comment in comments.items():
        pattern = re.compile(rf"(    # )one of [^\n]*(\n    {key}: )")
        text = replaced(pattern, text, comment, what=f"the comment of {key}")
    vendors = [name for name in chart_vendors() if name not in OWN_VALUES]
    lines = "".join(f"  {name}: {{enabled: false, config: {{}}, customresources: []}}\n" for name in vendors)
    pattern = re.compile(r"(  # generated: vendors\n).*?(  # end\n)", re.DOTALL)
    return replaced(pattern, text, lines, what="# generated: vendors")


def device_template(text: str) -> str:
    """The sections of vendors whose resources have names in values, or fixed ones."""
    chosen = [family for family in families() if family.section not in OWN_TEMPLATES]
    lines: list[str] = []
    for family in chosen:
        lines.append(f"{family.section}:")
        for line in dump_device_config({family.section: family.chart}).splitlines()[1:]:
            key, _, value = line.strip().partition(": ")
            if value != '""':
                lines.append(f"  {key}: {template_of(family.section, key, value)}")
    pattern = re.compile(r'(\{\{- define "tessera.otherVendors" -\}\}\n).*?(\{\{- end -\}\}\n)', re.DOTALL)
    return replaced(pattern, text, "\n".join(lines) + "\n", what="tessera.otherVendors")


RESERVED_FORMS = ("vgpu-.*", "bind-.*", ".*-devices-(to-allocate|allocated)")
"""of names under hami.io/; chips that a configuration adds have names of the last form"""


def reserved_pattern(text: str) -> str:
    """The names that only Tessera and the plugins write, as one pattern without lookahead, which CEL does not have."""
    wishes = {name.removeprefix(RESERVED_PREFIX): False for name in WISHES}
    ours = f"tessera[.]io/{all_but(wishes | {WISH_PREFIX.removeprefix(RESERVED_PREFIX): True})}"
    names = (key.removeprefix("hami.io/") for key in sorted(reserved_keys(build_vendors(None, Switches(True, True)))))
    others = [name for name in names if not any(re.fullmatch(form, name) for form in RESERVED_FORMS)]
    content = f"^({ours}|hami[.]io/({'|'.join([*RESERVED_FORMS, *others])}))$\n"
    pattern = re.compile(r'(\{\{- define "tessera.reservedPattern" -\}\}\n).*?(\{\{- end -\}\}\n)', re.DOTALL)
    return replaced(pattern, text, content, what="tessera.reservedPattern")


def all_but(names: Mapping[str, bool], *, is_start: bool = True) -> str:
    """A pattern of all texts but these names; True: and but those that begin with the name."""
    firsts = sorted({name[0] for name in names if name}, key=lambda first: (first == "-", first))
    ways = [f"[^{''.join(firsts)}].*"] if firsts else [".+"]
    for first in firsts:
        rest = {name[1:]: is_prefix for name, is_prefix in names.items() if name.startswith(first)}
        if not rest.get("", False):
            ways.append(first.replace(".", "[.]") + all_but(rest, is_start=False))
    return f"({'|'.join(ways)}){'' if is_start or '' in names else '?'}"


def template_of(section: str, key: str, value: str) -> str:
    name = HAMI_VALUES.get((section, key))
    if name is None:
        return value
    if value in ("true", "false"):
        return f'{{{{ include "tessera.true" .Values.{name} | default "false" }}}}'
    return f"{{{{ .Values.{name} }}}}"


def protected_variables(_: str) -> str:
    """For every maker whose cards a variable can give away: the lists that the guarding policies need."""
    head = "# Variables that a tenant must not set, from the code; `make generate` writes this file.\n"
    makers: dict[str, Any] = {}
    for family in families():
        for vendor in family.build(family.chart, Switches(ascend=True, iluvatar=True)):
            if vendor.protected is not None:
                makers[family.section] = protected_of(vendor, vendor.protected)
    return head + "".join(f"{section}: {json.dumps(lists, indent=2)}\n" for section, lists in sorted(makers.items()))


def protected_of(vendor: Vendor, protected: ProtectedVariables) -> dict[str, Any]:
    api = vendor.downward_api
    references = [] if api is None else [*api.references(0, MAX_DEVICES), *api.shields(0, MAX_DEVICES)]
    return {
        "devices": protected.devices,
        "noDevices": protected.no_devices,
        "harmless": sorted({protected.no_devices, *protected.harmless}),
        "pattern": protected.pattern,
        "names": list(protected.names),
        "switches": {name: sorted(values) for name, values in protected.switches.items()},
        "references": {variable: key.partition(".io/c0.")[2] for variable, key in references},
        "instances": protected.instances,
    }


FILES: Mapping[str, Callable[[str], str]] = {
    f"{CHART}/values.schema.json": values_schema,
    f"{CHART}/values.yaml": values,
    f"{CHART}/templates/_checks.tpl": reserved_pattern,
    f"{CHART}/templates/_devices.tpl": device_template,
    f"{CHART}/files/protected-variables.yaml": protected_variables,
    f"{CHART}/Chart.yaml": release,
    ".github/CODEOWNERS": release,
    ".github/ISSUE_TEMPLATE/config.yml": release,
    "CHANGELOG.md": release,
    "Dockerfile": release,
    "MAINTAINERS.md": release,
    "README.md": release,
    "docs/asking-a-cluster.md": release,
    "docs/install.md": release,
    "SECURITY.md": release,
    "packaging/krew/tessera.yaml": release,
    "pyproject.toml": release,
    "docs/user-guide.md": with_blocks(policies=policy_table(), resources=resource_table()),
    "docs/protocol.md": with_blocks(annotations_of_vendors=annotation_table()),
    "docs/reference.md": with_blocks(
        flags_of_tessera_scheduler=flag_tables(SCHEDULER),
        flags_of_tessera_device_plugin=flag_tables(DEVICE_PLUGIN),
        flags_of_tessera_monitor=flag_tables(MONITOR),
        metrics_of_the_scheduler=metric_table(scheduler_metrics()),
        metrics_of_the_agents=metric_table(agent_metrics()),
        metrics_of_the_monitors=metric_table(monitor_metrics()),
    ),
}
"""each file, and the function that updates its text"""


def outdated(root: Path = ROOT) -> dict[Path, str]:
    """The files that differ from the code, with the text that they should have."""
    found: dict[Path, str] = {}
    for name, write in FILES.items():
        before = (root / name).read_text(encoding="utf-8")
        try:
            after = write(before)
        except GenerateError as error:
            raise GenerateError(f"{name}: {error}") from error
        if after != before:
            found[root / name] = after
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes the lists in the chart and the docs from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file differs")
    check = parser.parse_args().check
    try:
        found = outdated()
    except GenerateError as error:
        print(f"generate: {error}", file=sys.stderr)
        return 1
    for path, text in found.items():
        print(
            f"generate: {path.relative_to(ROOT)} {'differs from the code; run `make generate`' if check else 'written'}"
        )
        if not check:
            path.write_text(text, encoding="utf-8")
    return 1 if check and found else 0


if __name__ == "__main__":
    sys.exit(main())
