"""Words from which tasks are made, and the drawing of names and lines."""

from __future__ import annotations

from random import Random

PLACES = (
    *("reports", "photos", "music", "drafts", "backup", "letters", "recipes", "maps", "games", "books"),
    *("invoices", "notes", "plans", "models", "results", "videos", "images", "logs", "scripts", "tools"),
    *("archive", "public", "private", "old", "new", "work", "home", "school", "travel", "garden"),
)
WORDS = (
    *("apple", "river", "stone", "cloud", "tiger", "lemon", "paper", "piano", "ocean", "candle"),
    *("forest", "silver", "window", "planet", "button", "garlic", "hammer", "island", "jacket", "kettle"),
    *("ladder", "marble", "needle", "orange", "pepper", "rabbit", "saddle", "ticket", "violin", "walnut"),
)
PEOPLE = ("ada", "bob", "cara", "dan", "eve", "finn", "gina", "hugo", "iris", "jon", "kim", "leo", "mia", "noah")
CITIES = ("paris", "oslo", "rome", "lima", "cairo", "delhi", "tokyo", "quito", "sofia", "dublin", "bern", "riga")


def random_name(rng: Random) -> str:
    return f"{rng.choice(WORDS)}-{rng.choice(PLACES)}"


def random_names(rng: Random, num: int) -> list[str]:
    return [f"{word}-{rng.choice(PLACES)}" for word in rng.sample(WORDS, num)]


def random_lines(rng: Random, num: int) -> list[str]:
    return [" ".join(rng.sample(WORDS, 3)) for _ in range(num)]


def joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
