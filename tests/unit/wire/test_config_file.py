from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct, field

from tessera.files.documents import MAX_DEPTH, plain_value
from tessera.wire import config_file
from tessera.wire.config_file import MAX_BYTES, MAX_PROBLEMS, ConfigError, ConfigFile


class Inner(Struct, frozen=True, kw_only=True):
    name: str
    size: int = 0


class Everything(Struct, frozen=True, kw_only=True, rename="camel"):
    some_text: str = ""
    some_number: int = 0
    some_share: float = 0.0
    some_flag: bool = False
    some_level: str | int = ""
    some_maybe: int | None = None
    some_choice: Literal["", "on-top", "below"] = ""
    some_list: list[str] = []
    some_tuple: tuple[Inner, ...] = ()
    some_inner: Inner | None = None
    some_anything: Any = None
    some_word: Annotated[str, Meta(pattern="^[a-z]+$", min_length=2, max_length=4)] = "ab"
    some_above: Annotated[int, Meta(ge=1, le=9)] = 1
    some_ratio: Annotated[float, Meta(ge=0.5, le=1)] = 1.0
    some_other: Annotated[float, Meta(ge=-1)] = 0.0
    some_described: Annotated[int, Meta(description="described", extra_json_schema={"x": 1})] = 0
    some_described_or_text: Annotated[int, Meta(description="described", extra_json_schema={"x": 1})] | str = 0
    some_mix: list[int | list[str] | None] = []
    renamed: int = field(default=0, name="someGPUNum")


class Picky(Struct, frozen=True, kw_only=True):
    low: int = 0
    high: int = 0

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")


def read(text: str, type_: Any = Everything, *, any_case: bool = False, is_json: bool = False) -> Any:
    file = ConfigFile(text, file="f.json" if is_json else "f.yaml", is_json=is_json)
    value = file.convert(type_, file.value, any_case=any_case)
    file.check()
    return value


def problems(text: str, type_: Any = Everything, *, is_json: bool = False) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text, type_, is_json=is_json)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{}", Everything()),
        ("someText: a b", Everything(some_text="a b")),
        ('someText: "5"', Everything(some_text="5")),
        ("someText: '5'", Everything(some_text="5")),
        ("someText: |\n  5\n", Everything(some_text="5\n")),
        ("someText: 2026-11-15", Everything(some_text="2026-11-15")),
        ("someText: 1g.5gb", Everything(some_text="1g.5gb")),
        ("someText:", Everything()),
        ("someText: ~", Everything()),
        ("someNumber: 0", Everything()),
        ("someNumber: 2147483647", Everything(some_number=2**31 - 1)),
        ("someNumber: +7", Everything(some_number=7)),
        ("someShare: 2", Everything(some_share=2.0)),
        ("someShare: 1e-1", Everything(some_share=0.1)),
        ("someShare: .5", Everything(some_share=0.5)),
        ("someShare: -1.5", Everything(some_share=-1.5)),
        ("someShare: 00.5", Everything(some_share=0.5)),
        ("someFlag: true", Everything(some_flag=True)),
        ("someFlag: Yes", Everything(some_flag=True)),
        ("someFlag: ON", Everything(some_flag=True)),
        ("someFlag: off", Everything()),
        ("someLevel: 3", Everything(some_level=3)),
        ('someLevel: "3"', Everything(some_level="3")),
        ("someMaybe: 0", Everything(some_maybe=0)),
        ("someMaybe: null", Everything()),
        ("someChoice: below", Everything(some_choice="below")),
        ('someChoice: ""', Everything()),
        ("someList: [a, b]", Everything(some_list=["a", "b"])),
        ("someList: []", Everything()),
        (
            "someTuple:\n- name: x\n- {name: y, size: 2}",
            Everything(some_tuple=(Inner(name="x"), Inner(name="y", size=2))),
        ),
        ("someInner: {name: x}", Everything(some_inner=Inner(name="x"))),
        ("someAnything: [{a: [1, x]}, true]", Everything(some_anything=[{"a": [1, "x"]}, True])),
        ("someWord: abc", Everything(some_word="abc")),
        ("someAbove: 9", Everything(some_above=9)),
        ("someRatio: 1", Everything(some_ratio=1.0)),
        ("someDescribed: 4", Everything(some_described=4)),
        ("someDescribedOrText: 4", Everything(some_described_or_text=4)),
        ("someMix: [1, ~, [a]]", Everything(some_mix=[1, None, ["a"]])),
        ("someGPUNum: 1", Everything(renamed=1)),
        ("someList: &names [a]\nsomeAnything: *names", Everything(some_list=["a"], some_anything=["a"])),
        ("\ufeffsomeText: a", Everything(some_text="a")),
        ("# nothing\n---\nsomeText: a\n...\n", Everything(some_text="a")),
    ],
)
def test_a_value_of_the_declared_type_is_read(text: str, value: Everything) -> None:
    assert read(text) == value


INT = "a whole number"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('someNumber: "5"', f'someNumber: expected {INT}, found the text "5"'),
        ("someNumber: five", f'someNumber: expected {INT}, found the text "five"'),
        ('someNumber: "five"', f'someNumber: expected {INT}, found the text "five"'),
        ("someNumber: 5.0", f"someNumber: expected {INT}, found 5.0"),
        ("someNumber: 5.5", f"someNumber: expected {INT}, found 5.5"),
        ("someNumber: 1e20", f"someNumber: expected {INT}, found 1e+20"),
        ("someNumber: -1", f"someNumber: expected {INT} >= 0, found -1"),
        ("someNumber: 2147483648", f"someNumber: expected {INT} <= 2147483647, found 2147483648"),
        ("someNumber: 012", f'someNumber: expected {INT}, found the text "012"'),
        ("someNumber: 1_000", f'someNumber: expected {INT}, found the text "1_000"'),
        ("someNumber: ٥", f'someNumber: expected {INT}, found the text "٥"'),
        ("someNumber: true", f"someNumber: expected {INT}, found true"),
        ("someNumber: [5]", f"someNumber: expected {INT}, found a list"),
        ("someShare: .nan", "someShare: expected a finite number, found nan"),
        ("someShare: -.inf", "someShare: expected a finite number, found -inf"),
        ("someShare: 1e999", "someShare: expected a finite number, found inf"),
        ('someShare: "1.5"', 'someShare: expected a number, found the text "1.5"'),
        ("someShare: true", "someShare: expected a number, found true"),
        ("someFlag: 1", "someFlag: expected true or false, found 1"),
        ("someFlag: 0", "someFlag: expected true or false, found 0"),
        ("someFlag: 2", "someFlag: expected true or false, found 2"),
        ('someFlag: "true"', 'someFlag: expected true or false, found the text "true"'),
        ("someText: 5", "someText: expected a text, found 5"),
        ("someText: no", "someText: expected a text, found false"),
        ("someText: {a: b}", "someText: expected a text, found a table of keys"),
        ("someLevel: 1.5", f"someLevel: expected {INT} or a text, found 1.5"),
        ("someLevel: []", f"someLevel: expected {INT} or a text, found a list"),
        ("someMaybe: x", f'someMaybe: expected {INT}, found the text "x"'),
        ("someChoice: ontop", 'someChoice: expected one of "below", "on-top", found the text "ontop"'),
        ("someChoice: yes", 'someChoice: expected one of "below", "on-top", found true'),
        ("someList: a", 'someList: expected a list, found the text "a"'),
        ("someList: {}", "someList: expected a list, found a table of keys"),
        ("someList: [a, 5]", "someList[1]: expected a text, found 5"),
        ("someList: [a, ]\nsomeText: [~]", "someText: expected a text, found a list"),
        ("someList: [~]", "someList[0]: expected a text, found nothing"),
        ("someMix: [a]", f'someMix[0]: expected {INT} or a list, found the text "a"'),
        ("someTuple: [{size: 1}]", 'someTuple[0]: the key "name" is missing'),
        ("someTuple: [{name: x, size: y}]", f'someTuple[0].size: expected {INT}, found the text "y"'),
        ("someInner: 5", "someInner: expected a table of keys, found 5"),
        ("someWord: ABC", "someWord: expected a text matching regex '^[a-z]+$', found the text \"ABC\""),
        ("someAbove: 10", "someAbove: expected a whole number <= 9, found 10"),
        ("someAbove: 0", "someAbove: expected a whole number >= 1, found 0"),
        ("someRatio: 0", "someRatio: expected a number >= 0.5, found 0"),
        ("someOther: -2", "someOther: expected a number >= -1.0, found -2"),
        ("someDescribedOrText: []", f"someDescribedOrText: expected {INT} or a text, found a list"),
        ('someText: "a\\tb\\"c"\nsomeNumber: "\\n"', f'someNumber: expected {INT}, found the text "\\n"'),
    ],
)
def test_a_value_of_another_type_is_refused(text: str, said: str) -> None:
    assert said in [problem.partition(": ")[2] for problem in problems(text)]


def test_a_word_may_be_too_short_and_too_long() -> None:
    assert len(problems("someWord: a")) == 1
    assert len(problems("someWord: abcde")) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sometext: a", 'f.yaml:1: unknown key "sometext"; did you mean "someText"?'),
        ("x: 1\nsomeNmber: a", 'f.yaml:2: unknown key "someNmber"; did you mean "someNumber"?'),
        ("\nqqq: 1", 'f.yaml:2: unknown key "qqq"'),
        ("someInner: {nam: x}", 'f.yaml:1: someInner: unknown key "nam"; did you mean "name"?'),
        ("someInner: {zzz: x}", 'f.yaml:1: someInner: unknown key "zzz"; known keys are name, size'),
        ("someText: a\nsomeText: b", 'f.yaml:2: the key "someText" is given twice, first in line 1'),
        ("? [a]\n: b", "f.yaml:1: a list or table cannot be a key"),
        ("<<: {someText: a}", "f.yaml:1: merge keys (<<) are not supported; write the keys out"),
        ("someText: !!str 5", 'f.yaml:1: the tag "tag:yaml.org,2002:str" is not supported; write the value alone'),
        ("someList: !x [a]", 'f.yaml:1: the tag "!x" is not supported; write the value alone'),
        ("someText: *a", "f.yaml:1: not valid YAML: found undefined alias"),
        ("someList: &a [*a]", "f.yaml:1: an alias stands in what it names"),
        ("a: 1\n---\nb: 2", "f.yaml:2: a second document starts here; write one document per file"),
        ("a: b\nc: \ud800", "f.yaml:2: the file is not valid UTF-8"),
        ("- a", "f.yaml:1: expected a table of keys, found a list"),
        ("", "f.yaml: expected a table of keys, found nothing"),
    ],
)
def test_every_mistake_has_its_line(text: str, said: str) -> None:
    assert said in problems(text)


@pytest.mark.parametrize("text", ["a: b\n]", "a: b\n c: d", "a: b\n\x01", "a: b\n'"])
def test_what_is_no_yaml_is_refused_with_its_line(text: str) -> None:
    # The words are those of the library, which has two implementations.
    (said,) = problems(text)
    assert said.startswith("f.yaml:2: not valid YAML: ")


def test_a_refused_key_takes_its_value_with_it() -> None:
    assert problems("? [a]\n: {b: c}\nsomeText: 5")[1:] == ["f.yaml:3: someText: expected a text, found 5"]


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
    told = problems("someFlag: 1\nsomeText: x\nsomeText: y\nsomeNumber: z\nwhat: 1\n")
    assert [line.split(":")[1] for line in told] == ["1", "3", "4", "5"]


def test_a_check_of_the_struct_itself_is_told_with_the_line_of_the_struct() -> None:
    assert problems("- low: 1\n  high: 2\n- low: 2\n  high: 1\n", list[Picky]) == [
        "f.yaml:3: [1]: low 2 is above high 1"
    ]


def test_a_check_of_the_struct_never_sees_values_of_a_wrong_type() -> None:
    assert len(problems("low: x\nhigh: 1", Picky)) == 1


def test_with_many_mistakes_the_first_are_told_and_the_others_counted() -> None:
    with pytest.raises(ConfigError) as caught:
        read("\n".join(f"key{i}: 1" for i in range(MAX_PROBLEMS + 7)))
    assert len(caught.value.problems) == MAX_PROBLEMS
    assert str(caught.value).endswith("and 7 more problems")


def test_where_case_does_not_matter_a_key_may_still_be_given_only_once() -> None:
    assert read("SOMETEXT: a", any_case=True) == Everything(some_text="a")
    with pytest.raises(ConfigError, match="someText: is given twice, in different case"):
        read("SOMETEXT: a\nsomeText: b", any_case=True)


FEW_ITEMS = 10_000


@pytest.fixture
def few_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that is reached sooner."""
    assert FEW_ITEMS < config_file.MAX_ITEMS
    monkeypatch.setattr(config_file, "MAX_ITEMS", FEW_ITEMS)


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 30)
)
LADDER = "- &a0 [x]\n" + "".join(f"- &a{i} [*a{i - 1}]\n" for i in range(1, 200))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, f"more than {FEW_ITEMS} values"),
        (LADDER, f"nested more than {MAX_DEPTH} levels deep"),
        ("[" * 500_000, f"nested more than {MAX_DEPTH} levels deep"),
        ("{a: " * 200_000, f"nested more than {MAX_DEPTH} levels deep"),
        ("- " * 500_000, f"nested more than {MAX_DEPTH} levels deep"),
        ("[" + "a," * (FEW_ITEMS + 1) + "]", f"more than {FEW_ITEMS} values"),
        ("#" * (MAX_BYTES + 1), f"the file has {MAX_BYTES + 1} bytes; at most {MAX_BYTES} are read"),
        ("é" * (MAX_BYTES // 2 + 1), f"the file has {MAX_BYTES + 2} bytes; at most {MAX_BYTES} are read"),
    ],
    ids=["alias bomb", "alias ladder", "flow lists", "flow tables", "block lists", "long list", "long", "long letters"],
)
def test_a_file_made_to_exhaust_the_reader_is_refused(text: str, said: str, few_items: None) -> None:
    with pytest.raises(ConfigError, match=said):
        read(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "f.json:1: not valid JSON: Expecting value (column 1)"),
        ('{"a": 1,\n "b": }', "f.json:2: not valid JSON: Expecting value (column 7)"),
        ('{"a": NaN}', "f.json: not valid JSON: NaN is not a JSON number"),
        ('{"a": -Infinity}', "f.json: not valid JSON: -Infinity is not a JSON number"),
        ("[" * 5_000, f"f.json: nested more than {MAX_DEPTH} levels deep"),
        ("[" * 200 + "]" * 200, f"f.json: nested more than {MAX_DEPTH} levels deep"),
        ("[" + "1," * FEW_ITEMS + "1]", f"f.json: more than {FEW_ITEMS} values"),
        ('{"someText": "a",\n\n"someText": "b"}', 'f.json: the key "someText" is given twice'),
        ('{"someText":\n"\\ud800"}', "f.json: half of a surrogate pair is no character"),
        (f'{{"someNumber": {"9" * 5000}}}', f'f.json:1: someNumber: expected {INT}, found the text "{"9" * 120}…"'),
    ],
    ids=lambda value: value[:30],
)
def test_mistakes_in_json_have_their_line_too(text: str, said: str, few_items: None) -> None:
    assert said in problems(text, is_json=True)


def test_json_is_read_with_all_its_kinds_of_values() -> None:
    text = '{"someText": "a\\"\\u00e9\\ud83d\\ude00",\t"someList": ["x", ""], "someFlag": true, "someMaybe": null,'
    text += '"someShare": -1.5E+1, "someInner": {"name": "true"}, "someTuple": []}'
    assert read(text, is_json=True) == Everything(
        some_text='a"é😀', some_list=["x", ""], some_flag=True, some_share=-15.0, some_inner=Inner(name="true")
    )


@pytest.mark.parametrize("text", ["", "1" * 41, "tRue", "yEs", "0x10", "1:30", ".", "-", "e5", "=", "1e"])
def test_words_that_look_like_something_else_are_texts(text: str) -> None:
    assert plain_value(text) == (text or None)
