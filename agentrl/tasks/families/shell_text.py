"""Kinds of `shell_basics` about what files hold: write, count, sort, pick, replace, join."""

from __future__ import annotations

from random import Random

from agentrl.tasks.families.scene import Scene, has_text
from agentrl.tasks.families.words import CITIES, PEOPLE, PLACES, WORDS, joined, random_lines, random_name, random_names


def write(rng: Random) -> Scene:
    name, text = f"{random_name(rng)}.txt", " ".join(rng.sample(WORDS, 2))
    return Scene(
        ask=f"Write the text {text} to the file {name}.",
        result=f"{name} must hold just that line",
        solve=f"echo '{text}' > {name}",
        checks=(has_text(name, text),),
    )


def append(rng: Random) -> Scene:
    name, line = f"{random_name(rng)}.txt", " ".join(rng.sample(WORDS, 2))
    lines = random_lines(rng, 3)
    return Scene(
        ask=f"Add the line {line} at the end of the file {name}.",
        result=f"{name} must hold its old lines and that one",
        files={name: joined(lines)},
        solve=f"echo '{line}' >> {name}",
        checks=(has_text(name, joined([*lines, line])),),
    )


def count_lines(rng: Random) -> Scene:
    name, num = f"{random_name(rng)}.txt", rng.randint(4, 40)
    return Scene(
        ask=f"Count the lines of {name} and write the number to count.txt.",
        result="count.txt must hold only the number",
        files={name: joined(random_lines(rng, num))},
        solve=f"wc -l < {name} > count.txt",
        checks=("[ -f count.txt ]", f"""[ "$(tr -d ' \\n' < count.txt)" = {num} ]"""),
    )


def count_words(rng: Random) -> Scene:
    name = f"{random_name(rng)}.txt"
    text = "\n".join(" ".join(rng.choices(WORDS, k=rng.randint(2, 6))) for _ in range(rng.randint(3, 8))) + "\n"
    return Scene(
        ask=f"Count the words in {name} and write the number to words.txt.",
        result="words.txt must hold only the number",
        files={name: text},
        solve=f"wc -w < {name} > words.txt",
        checks=("[ -f words.txt ]", f"""[ "$(tr -d ' \\n' < words.txt)" = {len(text.split())} ]"""),
    )


def size(rng: Random) -> Scene:
    name = f"{random_name(rng)}.bin"
    text = "x" * rng.randint(100, 9000)
    return Scene(
        ask=f"Write the size of {name} in bytes to size.txt.",
        result="size.txt must hold only the number",
        files={name: text},
        solve=f"wc -c < {name} > size.txt",
        checks=("[ -f size.txt ]", f"""[ "$(tr -d ' \\n' < size.txt)" = {len(text)} ]"""),
    )


def sort(rng: Random) -> Scene:
    name = f"{random_name(rng)}.txt"
    words = rng.sample(WORDS, 8)
    while words == sorted(words):
        rng.shuffle(words)
    return Scene(
        ask=f"Sort the lines of {name} and write them to sorted.txt.",
        result="sorted.txt must hold all lines in order",
        files={name: joined(words)},
        solve=f"sort {name} > sorted.txt",
        checks=(has_text("sorted.txt", joined(sorted(words))), has_text(name, joined(words))),
    )


def unique(rng: Random) -> Scene:
    name = f"{random_name(rng)}.txt"
    words = rng.sample(WORDS, 5)
    lines = [*words, *rng.choices(words, k=6)]
    rng.shuffle(lines)
    return Scene(
        ask=f"Write each different line of {name} once, sorted, to unique.txt.",
        result="unique.txt must hold those lines",
        files={name: joined(lines)},
        solve=f"sort -u {name} > unique.txt",
        checks=(has_text("unique.txt", joined(sorted(words))),),
    )


def head(rng: Random) -> Scene:
    name, num = f"{random_name(rng)}.txt", rng.randint(2, 5)
    lines = random_lines(rng, 12)
    return Scene(
        ask=f"Write the first {num} lines of {name} to first.txt.",
        result=f"first.txt must hold those {num} lines",
        files={name: joined(lines)},
        solve=f"head -n {num} {name} > first.txt",
        checks=(has_text("first.txt", joined(lines[:num])),),
    )


def tail(rng: Random) -> Scene:
    name, num = f"{random_name(rng)}.txt", rng.randint(2, 5)
    lines = random_lines(rng, 12)
    return Scene(
        ask=f"Write the last {num} lines of {name} to last.txt.",
        result=f"last.txt must hold those {num} lines",
        files={name: joined(lines)},
        solve=f"tail -n {num} {name} > last.txt",
        checks=(has_text("last.txt", joined(lines[-num:])),),
    )


def grep(rng: Random) -> Scene:
    name, word = f"{random_name(rng)}.txt", rng.choice(WORDS)
    others = [other for other in WORDS if other != word]
    lines = [f"{rng.choice(others)} {word if rng.random() < 0.4 else rng.choice(others)}" for _ in range(12)]
    lines[rng.randrange(12)] = f"{rng.choice(others)} {word}"
    return Scene(
        ask=f"Write the lines of {name} that contain {word} to found.txt.",
        result="found.txt must hold just those lines",
        files={name: joined(lines)},
        solve=f"grep {word} {name} > found.txt",
        checks=(has_text("found.txt", joined([line for line in lines if word in line])),),
    )


def replace(rng: Random) -> Scene:
    name = f"{random_name(rng)}.txt"
    old, new, *others = rng.sample(WORDS, 6)
    lines = [f"{rng.choice(others)} {old} {rng.choice(others)}" for _ in range(4)]
    text = joined(lines)
    return Scene(
        ask=f"Replace the word {old} by {new} everywhere in {name}.",
        result=f"{name} must hold {new} and no {old}",
        files={name: text},
        solve=f"sed -i 's/{old}/{new}/g' {name}",
        checks=(has_text(name, text.replace(old, new)),),
    )


def find(rng: Random) -> Scene:
    top, *subs = rng.sample(PLACES, 4)
    ending, other = rng.sample(("log", "csv", "md", "json"), 2)
    num = rng.randint(3, 7)
    names = rng.sample(WORDS, num + 3)
    files = {f"{top}/{rng.choice(subs)}/{name}.{ending}": "x\n" for name in names[:num]}
    files |= {f"{top}/{rng.choice(subs)}/{name}.{other}": "x\n" for name in names[num:]}
    return Scene(
        ask=f"Count the files below {top} whose name ends in .{ending} and write the number to count.txt.",
        result="count.txt must hold only the number",
        files=files,
        solve=f"find {top} -name '*.{ending}' | wc -l > count.txt",
        checks=("[ -f count.txt ]", f"""[ "$(tr -d ' \\n' < count.txt)" = {num} ]"""),
    )


def concatenate(rng: Random) -> Scene:
    first, second = (f"{name}.txt" for name in random_names(rng, 2))
    one, two = joined(random_lines(rng, 3)), joined(random_lines(rng, 3))
    return Scene(
        ask=f"Join {first} and {second}, in this order, into all.txt.",
        result="all.txt must hold the lines of both",
        files={first: one, second: two},
        solve=f"cat {first} {second} > all.txt",
        checks=(has_text("all.txt", one + two),),
    )


def environment(rng: Random) -> Scene:
    variable = f"{rng.choice(WORDS)}_{rng.choice(('NAME', 'CODE', 'KEY', 'MODE'))}".upper()
    value, name = "-".join(rng.sample(WORDS, 2)), f"{random_name(rng)}.txt"
    return Scene(
        ask=f"Write the value of the environment variable {variable} to {name}.",
        result=f"{name} must hold just the value",
        env={variable: value},
        solve=f'echo "${variable}" > {name}',
        checks=(has_text(name, value),),
    )


def csv_column(rng: Random) -> Scene:
    name, column = f"{random_name(rng)}.csv", rng.randint(1, 3)
    rows = [(rng.choice(PEOPLE), str(rng.randint(10, 99)), rng.choice(CITIES)) for _ in range(6)]
    return Scene(
        ask=f"The fields of {name} are separated by commas. Write its column {column} to column.txt.",
        result="column.txt must hold one field per line, in the same order",
        files={name: joined([",".join(row) for row in rows])},
        solve=f"cut -d , -f {column} {name} > column.txt",
        checks=(has_text("column.txt", joined([row[column - 1] for row in rows])),),
    )


def uppercase(rng: Random) -> Scene:
    name = f"{random_name(rng)}.txt"
    text = joined(random_lines(rng, 3))
    return Scene(
        ask=f"Write the text of {name} in capital letters to upper.txt.",
        result="upper.txt must hold it in capitals",
        files={name: text},
        solve=f"tr a-z A-Z < {name} > upper.txt",
        checks=(has_text("upper.txt", text.upper()),),
    )


def reverse(rng: Random) -> Scene:
    name = f"{random_name(rng)}.txt"
    lines = rng.sample(WORDS, 6)
    return Scene(
        ask=f"Write the lines of {name} in reverse order to reversed.txt.",
        result="its first line must be the old last one",
        files={name: joined(lines)},
        solve=f"tac {name} > reversed.txt",
        checks=(has_text("reversed.txt", joined(lines[::-1])),),
    )
