"""The terms a text is indexed by: words without inflection, and what identifiers are made of."""

import re
from functools import lru_cache
from itertools import pairwise
from unicodedata import normalize

UNSPACED = (
    r"\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    r"\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Chinese and Japanese signs, between whose words is no space; for a class of an expression."""
_RUN = re.compile(f"[{UNSPACED}]+|[^{UNSPACED}]+")
_SIGN = re.compile(f"[{UNSPACED}]")
# Letters with digits inside, and identifiers such as `max_model_len` or `torch.nn` in one piece.
_WORD = re.compile(r"[^\W_]+(?:[._-][^\W_]+)*")
_PART = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_PIECE = re.compile(r"[^\W_]+|[^\w\s]|_")
_VOWEL = re.compile(r"[aeiouy]")
_LONGEST_WORD = 40
"""What is longer is no word, and would only fill the memory of those that were stemmed."""
_DOUBLED = re.compile(r"([^aeioulsz\d])\1$")
_IES = re.compile(r"(?<=..)ies$")
_PLURAL = re.compile(r"(?<=ss)es$|(?<![sui])s$")

_SMALL_WORDS = (
    "a about after all also am an and any are as at be because been before being both but by can"
    " could did do does doing done each else few for from had has have having he her here him his"
    " how however i if in into is it its itself just me might more most much must my no nor not of"
    " off on one only or other our out over own per quite rather same shall she should since so"
    " some such than that the their them then there these they this those though through to too"
    " under until up upon us very was we were what when where whether which while who whom whose"
    " why will with within would you your don doesn didn isn aren wasn won ll ve re"
)
STOPWORDS = frozenset(_SMALL_WORDS.split())


def terms(text: str) -> list[str]:
    """The text's terms in order, no stop words; of Chinese and Japanese all pairs of neighbours."""
    found: list[str] = []
    # Letters typed as a letter and its accent are two characters, of which one ends a word.
    for match in _WORD.finditer(normalize("NFC", text)):
        word = match.group()
        parts = _PART.findall(word)
        if len(parts) > 1:
            # prefix-caching -> prefixcaching, prefix, caching
            found.append("".join(parts).lower())
        for part in parts:
            found += _of_part(part)
    telling = (word for word in found if word not in STOPWORDS and len(word) > 1)
    return [_stem(word) if len(word) <= _LONGEST_WORD else word for word in telling]


def pieces(text: str) -> list[str]:
    """All words and signs of the text, inflected as they are, in lower case."""
    return _PIECE.findall(text.lower())


def _of_part(part: str) -> list[str]:
    if part.isascii() or not _SIGN.search(part):
        return _of_word(part)
    found: list[str] = []
    for run in _RUN.findall(part):
        # Each sign with the next: which of them are words, only a dictionary knows.
        pairs = [first + second for first, second in pairwise(run)]
        found += pairs if _SIGN.match(run) else _of_word(run)
    # A single sign is no pair: with one letter or digit it is a word, as 第3章.
    return found if any(len(each) > 1 for each in found) else [part.lower()]


def _of_word(part: str) -> list[str]:
    humps = _HUMP.findall(part) if part[1:] != part[1:].lower() else []
    whole = part.lower()
    return [whole, *(hump.lower() for hump in humps)] if len(humps) > 1 else [whole]


@lru_cache(maxsize=1 << 16)
def _stem(word: str) -> str:
    """The word without plural, past, progressive and adverb endings; rough, but consistent."""
    if len(word) <= 3 or not word.isascii() or any(letter.isdigit() for letter in word):
        return word
    word = _PLURAL.sub("", _IES.sub("y", word))
    for suffix, least in (("ingly", 3), ("edly", 3), ("ing", 3), ("ed", 3), ("ly", 4)):
        stem = word.removesuffix(suffix)
        if stem != word and len(stem) >= least and _VOWEL.search(stem):
            word = _DOUBLED.sub(r"\1", stem)
            break
    word = word.removesuffix("e") if len(word) > 4 else word
    return f"{word[:-1]}i" if word.endswith("y") and len(word) > 3 else word
