#!/usr/bin/env python3
"""Writes src/text/unicode_additions.inc: the code points that Unicode 15 and later added, with their categories.

    pip install tokenizers
    python3 tools/make_unicode_additions.py > src/text/unicode_additions.inc

Needs a Python whose unicodedata is Unicode 14 (3.11): what it calls unassigned and the regex engine of the
`tokenizers` package (Oniguruma) does not is an addition. That package's Digits splitter has younger tables still: what
only it calls a number is marked N#.
"""
import sys
import unicodedata

from tokenizers import Regex, pre_tokenizers

CATEGORIES = ["Lu", "Ll", "Lt", "Lm", "Lo", "M", "Nd", "Nl", "No", "P", "S"]


def main():
    assert unicodedata.unidata_version == "14.0.0", unicodedata.unidata_version
    splitters = [(c, pre_tokenizers.Split(Regex(r"\p{%s}" % c), "removed")) for c in CATEGORIES]
    digits = pre_tokenizers.Digits(individual_digits=True)
    rows = []
    for code_point in range(0x110000):
        char = chr(code_point)
        if unicodedata.category(char) != "Cn":
            continue
        category = next((c for c, s in splitters if not s.pre_tokenize_str(char)), None)
        if category is None and len(digits.pre_tokenize_str("a" + char)) == 2:
            category = "N#"
        if category is None:
            continue
        category = (category + "n")[:2] if category == "M" else (category + "o")[:2]
        if rows and rows[-1][1] == code_point - 1 and rows[-1][2] == category:
            rows[-1][1] = code_point
        else:
            rows.append([code_point, code_point, category])
    for first, last, category in rows:
        sys.stdout.write('{0x%X, 0x%X, "%s"},\n' % (first, last, category))


if __name__ == "__main__":
    main()
