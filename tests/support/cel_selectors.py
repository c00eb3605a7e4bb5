"""Selectors of devices, by what they say of a card: also given to a real kube-scheduler, which must say the same."""

from __future__ import annotations

G = "device.attributes['gpu.tessera.io']"
C = "device.capacity['gpu.tessera.io']"

TRUE = [
    "true",
    "device.driver == 'gpu.tessera.io'",
    "device.allowMultipleAllocations",
    f"{G}.spare",
    f"{G}.model == 'NVIDIA H200'",
    f'{G}["model"] == "NVIDIA H200"',
    f"{G}.model.startsWith('NVIDIA') && {G}.model.endsWith('200') && {G}.model.contains(' ')",
    f"{G}.model.lowerAscii() == 'nvidia h200' && {G}.model.upperAscii() == 'NVIDIA H200'",
    f"{G}.model.size() == 11 && size({G}.model) == 11",
    f"{G}.model.matches('^NVIDIA (H|B)[0-9]+$')",
    f"{G}.model.matches(r'(?i)\\bh[[:digit:]]{{3}}\\b') && {G}.model.matches(r'^\\pL+ (?P<name>\\S{{2,9}}?)\\z')",
    f"{G}.model in ['NVIDIA A100', 'NVIDIA H200']",
    f"{G}.index == 1 && {G}.index >= 1 && {G}.index < 2 && {G}.index != 0",
    f"{G}.index * 3 + 4 - 1 == 6 && 7 / 2 == 3 && -7 / 2 == -3 && 7 % -2 == 1 && -7 % 2 == -1 && 0x10 == 16",
    f"{G}.driverVersion.isGreaterThan(semver('580.9.0'))",
    f"{G}.driverVersion.isLessThan(semver('580.65.7-rc.1'))",
    f"{G}.computeCapability.compareTo(semver('9.0.0')) == 0 && {G}.computeCapability == semver('9.0.0')",
    f"{G}.driverVersion.major() == 580 && {G}.driverVersion.minor() == 65 && {G}.driverVersion.patch() == 6",
    "semver('1.0.0-alpha.2').isLessThan(semver('1.0.0-alpha.10')) && semver('1.0.0-1').isLessThan(semver('1.0.0-a'))",
    "isSemver('1.2.3') && !isSemver('1.2') && !isSemver('01.2.3') && isQuantity('1Gi') && !isQuantity('1Q')",
    f"{C}.memory.isGreaterThan(quantity('100Gi')) && {C}.memory.compareTo(quantity('140Gi')) == 0",
    f"{C}.memory == quantity('140Gi') && {C}.cores.asInteger() == 100 && {C}.cores.isInteger()",
    f"{C}.cores.sub(quantity('1')).isLessThan({C}.cores) && {C}.cores.add(20).compareTo(quantity('120')) == 0",
    "device.attributes['resource.kubernetes.io'].pcieRoot == 'pci0000:00'",
    f"has({G}.model) && !has({G}.nothing) && !has(device.attributes['nowhere'].model)",
    f"'gpu.tessera.io' in device.attributes && !('nowhere' in device.attributes) && 'model' in {G}",
    f"cel.bind(g, {G}, g.index == 1 && g.spare)",
    f"cel.bind(n, {G}.nothing, {G}.spare)",  # A value that fails counts where it is used, and it is not.
    f"cel.bind(a, 1, cel.bind(a, 2, a == 2) && a == 1) && {G}.spare",
    f"['A100', 'H200'].exists(m, {G}.model.endsWith(m)) && [1, 2].all(n, n >= {G}.index)",
    f"[1, 2].exists(n, n == 2 || {G}.nothing == n)",
    f"{G}.index == 1 ? {G}.spare : {G}.nothing",
    f"{G}.nothing == 1 || {G}.spare",  # One side decides, whatever the other is.
    f"{G}.spare || {G}.nothing == 1",
    f"!({G}.nothing == 1 && false)",
    f"{G}.index != '1' && !({G}.index == true)",  # Values of different types are different, not wrong.
    "['a'] != ['b'] && [1] + [2] == [1, 2] && [1, 2][1] == 2 && 'a' + 'b' == 'ab'",
    r"""'tab\t' == "tab	" && r'\d' == '\\d' && '\x41\u0042' == 'AB' && '''it's''' == "it's" """,
    "'a' < 'b' && 'B' < 'a' && false < true",
    "// a comment\ntrue",
]
FALSE = [
    "false",
    f"{G}.model == 'A100'",
    "!device.allowMultipleAllocations",
    f"{G}.index in []",
    f"{G}.spare ? false : true",
]
FAILED = [
    f"{G}.nothing == 1",
    "device.attributes['nowhere'].model == 'x'",
    f"{G}.model",  # not a truth value
    f"{G}.model && true",
    f"{G}.model > 1",
    f"{G}.model.startsWith(1)",
    f"{G}.index.startsWith('1')",
    f"{G}.index + 'a' == ''",
    f"!{G}.index",
    "1 / 0 == 1",
    "1 % 0 == 1",
    "9223372036854775807 + 1 > 0",
    "[1][1] == 1",
    "[1]['a'] == 1",
    "semver('1') == semver('1')",
    "quantity('many') == quantity('many')",
    f"{G}.driverVersion.isGreaterThan(quantity('1'))",
    f"{C}.memory > 1",
    "quantity('0.5').asInteger() == 0",
    f"{G}.spare && {G}.nothing == 1",
    f"{G}.model.matches({G}.model + '(')",
    "'a'.matches('a') && ['a'].exists(x, 1)",
    "'a'.exists(x, true)",
    "1 in 2",
    "size(1) == 1",
]
