#!/usr/bin/env python3
"""Writes tests/data/tokenizers: real tokenizers cut to their first merges, and what the `tokenizers` package says about
a few hundred texts.

    pip install tokenizers==0.23.3
    python3 tests/tools/make_tokenizer_goldens.py DIR OUT

DIR holds tokenizer.json files as the hubs have them: smollm2/tokenizer.json, qwen3/, deepseek_v3/, gpt_oss/.
A cut tokenizer keeps its rules and added tokens. The GPT-2 and Llama 3 rules come with the vocabulary of gpt_oss,
since their own need a licence; "added" has added tokens with every strip rule.

texts.json    {"texts": [...], "bytes": [hex, ...]}: bytes are invalid UTF-8
NAME.json     the cut tokenizer
NAME.golden.json
              {"ids": [...], "plain": [...], "decode": [{"ids", "all", "text"}]}: ids of every text, then of every byte string
              (decoded with U+FFFD), with special tokens around; "plain" without them and with special tokens in the text
              spelled out (only for the first texts); decoded with and without special tokens
splits.json   [{"pre_tokenizer": ..., "ids": [...]}]: other pre-tokenizers over the vocabulary of smollm2, first texts
"""
import json
import pathlib
import random
import sys

from tokenizers import Tokenizer

NUM_MERGES = 2500
NUM_PLAIN = 150
NUM_SPLIT_TEXTS = 80

SCRIPTS = """Hello, world! It's 2024; I'm we'll they've he'd you're IT'S I'M WE'LL
The quick brown fox jumps over the lazy dog.  Two  spaces   three.
Привет, как дела? Ёлка №5
Γειά σου Κόσμε
שלום עולם 123
مرحبا بالعالم ٣٤٥
नमस्ते दुनिया १२३
தமிழ் மொழி
ไทยภาษา ๑๒๓
你好世界，今天天气很好。123
こんにちは世界カタカナ
안녕하세요 세계
ქართული Հայերեն አማርኛ မြန်မာ
Tiếng Việt đẹp Ça va? Où êtes-vous? naïve café
ſ 'ſ 'S 'ſt ı İ ß ẞ ŉ ǆ ǅ ﬁ ﬆ K
👩‍💻 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 🫨🫷🏽 🪿
½ ² ³ ¼ Ⅷ ⑤ ٣ ४ 𝟘𝟙 ㊿ 一二三
 a\u0301 e\u0300\u0316 ệ \u1100\u1161\u11a8 각 \u212b \u0958
\u00a0\u2003\u3000 \u200b\u200d\ufeff\u180e \u0085 \u2028\u2029
\U00031350\U0001e4d0 \u0897\u0898 \U00011de0 \u0378 \U000e0100
http://foo.bar/baz?x=1&y=2#frag path/to/file.txt C:\\dir\\x
$100.00 1,234,567 3.14e-10 0xDEADBEEF 12345678901234567890
foo_bar FooBar fooBAR HTTPServer XMLHttpRequest camelCase ALLCAPS
!!!??? ... --- === ;;; ((())) [[]] {{}} <<>> // /* */ # @ ~` ^ |""".split("\n")

BLOCKS = ["\t\ttabs  \t mix \r\n\r\nCRLF\r\rCR\n\n\n   trailing   \n  \n", "\x00\x01\x1f\x7f\x80\x9f", "", " ", "\n", "a", "'",
          "def f(x):\n    if x > 1:\n        return [i ** 2 for i in range(x)]\n\n\n    return None\n",
          "| a | b |\n|---|---|\n| 1 | 2 |\n", "a" * 300, " " * 100 + "x", "\n" * 70, "1" * 50, "中" * 40, "A" * 60, "\u0301" * 30]

POOL = ["a", "b", "Z", " ", "  ", "\n", "\r", "\t", "1", "9", "'", "s", "'s", "!", "/", "é", "Ж", "中", "あ", "한", "٣", "²", "\u0301",
        "\u0316", "\u1100", "\u1161", "\u11a8", "👩", "\u200d", "\u00a0", "\u3000", "\u180e", "\ufffd", "\x00", "-", "_", ".", ",",
        "\U00031350", "ſ", "ǅ", "ʰ", "$", "+", "€", "<|", "|>", "ا", "न", "ि", "the ", "ing", "word", "sword", "<|im_start|>",
        "<|im_end|>", "<|endoftext|>", "<｜User｜>", "<｜fim▁hole｜>", "<think>", "<|l|>", "<|r|>", "<|lr|>", " sp ", "e\u0301t", "abc"]

SPLIT = {"Regex": r"\s+|[a-c]|\p{N}*"}


def byte_level(use_regex, prefix=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": use_regex}


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")


def cut(path):
    tokenizer = json.loads(path.read_text())
    model = tokenizer["model"]
    merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"]]
    made = {a + b for a, b in merges}
    wanted = {a + b for a, b in merges[:NUM_MERGES]}
    vocabulary = {t: i for t, i in model["vocab"].items() if t not in made or t in wanted}
    kept = [m for m in merges if m[0] in vocabulary and m[1] in vocabulary and m[0] + m[1] in vocabulary]
    as_text = isinstance(model["merges"][0], str)
    model["merges"] = [" ".join(m) if as_text else list(m) for m in kept]
    renumber(tokenizer, vocabulary)
    return tokenizer


def renumber(tokenizer, vocabulary):
    """Ids without holes, in the old order: the reference numbers added tokens itself, after the vocabulary."""
    vocabulary = {t: i for i, (t, _) in enumerate(sorted(vocabulary.items(), key=lambda item: item[1]))}
    tokenizer["model"]["vocab"] = vocabulary
    next_id = len(vocabulary)
    for token in sorted(tokenizer["added_tokens"], key=lambda t: t["id"]):
        token["id"] = vocabulary.get(token["content"], next_id)
        next_id += token["id"] == next_id


def template(before, after):
    assert all(content.startswith("<|") for content, _ in before + after)
    special = lambda t: {"SpecialToken": {"id": t[0], "type_id": 0}}
    a, b = ({"Sequence": {"id": x, "type_id": i}} for i, x in enumerate("AB"))
    return {"type": "TemplateProcessing", "single": [*map(special, before), a, *map(special, after)],
            "pair": [*map(special, before), a, b, *map(special, after)],
            "special_tokens": {c: {"id": c, "ids": [i], "tokens": [c]} for c, i in before + after}}


def added_rules(tokenizer):
    rules = [("<|l|>", dict(lstrip=True)), ("<|r|>", dict(rstrip=True, special=True)),
             ("<|lr|>", dict(lstrip=True, rstrip=True, special=True)), ("word", dict(single_word=True)),
             ("e\u0301t", dict(normalized=True)), ("ab", dict(normalized=True)), ("abc", dict(normalized=True)),
             ("<|", dict(special=True)), (" sp ", dict(rstrip=True)), ("中", dict(single_word=True, normalized=True)),
             ("\n", dict(rstrip=True, lstrip=True, normalized=True)), ("é", dict())]
    vocabulary = tokenizer["model"]["vocab"]
    next_id = len(vocabulary)
    for content, flags in rules:
        token = dict(id=vocabulary.get(content, next_id), content=content, single_word=False, lstrip=False,
                     rstrip=False, normalized=False, special=False)
        next_id += token["id"] == next_id
        tokenizer["added_tokens"].append(token | flags)


def make_tokenizers(folder):
    result = {n: cut(folder / n / "tokenizer.json") for n in ("smollm2", "qwen3", "deepseek_v3", "gpt_oss")}
    copy = lambda name: json.loads(json.dumps(result[name]))
    result["gpt2"] = copy("gpt_oss")
    result["gpt2"]["pre_tokenizer"] = byte_level(True)
    result["gpt2"]["model"]["ignore_merges"] = False
    result["llama3"] = copy("gpt_oss")
    result["llama3"]["pre_tokenizer"] = sequence(split({"Regex": LLAMA3}), byte_level(False))
    result["llama3"]["post_processor"] = {"type": "Sequence", "processors": [
        byte_level(True), template([("<|startoftext|>", result["llama3"]["added_tokens"][0]["id"])], [])]}
    result["llama3"]["model"]["merges"] = [" ".join(m) for m in result["llama3"]["model"]["merges"]]
    result["added"] = copy("smollm2")
    result["added"]["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}]}
    result["added"]["pre_tokenizer"] = byte_level(True, prefix=True)
    result["added"]["decoder"] = {"type": "Sequence", "decoders": [byte_level(True), {"type": "Fuse"}]}
    result["added"]["post_processor"] = template([("<|im_start|>", 1)], [("<|im_end|>", 2)])
    result["added"]["model"]["unk_token"] = "<|endoftext|>"
    result["added"]["model"]["fuse_unk"] = True
    added_rules(result["added"])
    return result


def make_texts(rng):
    texts = SCRIPTS + BLOCKS
    markers = ["<|im_start|>", "<|endoftext|>", "<think>", "<｜begin▁of▁sentence｜>", "<｜fim▁hole｜>", "<|l|>", "<|r|>", "<|lr|>", "word"]
    for m in markers:
        texts += [m, f" {m} ", f"x{m}y", f"x  {m}\n\n y", m + m, m[:-1], f"\n{m}\n"]
    texts += ["".join(rng.choice(POOL) for _ in range(rng.randint(1, 25))) for _ in range(150)]
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    for joint in ("", "a", " "):
        texts += [joint.join(chr(rng.choice(points[:0x3100] if rng.random() < 0.7 else points)) for _ in range(16)) for _ in range(30)]
    alphabet = b"\xf0\x9f\x8c\xb6\xe4\xb8\x80\xc3A \xed\xa0\xff\xc0"
    raw = [bytes.fromhex(h) for h in ("ff", "c3", "f09f8c", "41ff42", "eda080", "c080", "f4908080", "e4b8", "e4b827", "f09fff9f", "80")]
    raw += [bytes(rng.choice(alphabet) for _ in range(rng.randint(1, 16))) for _ in range(40)]
    raw += [bytes(rng.randrange(256) for _ in range(rng.randint(1, 24))) for _ in range(30)]
    return texts, raw


def make_golden(tokenizer, texts, raw, rng):
    encode = lambda text, special: tokenizer.encode(text, add_special_tokens=special).ids
    everything = texts + [r.decode("utf-8", "replace") for r in raw]
    ids = [encode(t, True) for t in everything]
    tokenizer.encode_special_tokens = True
    plain = [encode(t, False) for t in texts[:NUM_PLAIN]]
    # A token whose content normalization changes is left out: the reference decodes it to something else than it found.
    known = sorted(i for t, i in tokenizer.get_vocab().items() if t != "e\u0301t")
    decode = []
    for _ in range(60):
        row = [rng.choice(known[:600] if rng.random() < 0.7 else known) for _ in range(rng.randint(1, 12))]
        decode.append({"ids": row, "all": tokenizer.decode(row, skip_special_tokens=False), "text": tokenizer.decode(row)})
    return {"ids": ids, "plain": plain, "decode": decode}


def split_variants():
    for behavior in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            yield sequence(split(SPLIT, behavior, invert), byte_level(True))
        yield sequence(split({"String": "a "}, behavior), byte_level(False))
    yield sequence({"type": "Digits", "individual_digits": False}, byte_level(True, prefix=True))
    yield sequence(split({"Regex": r"\s"}, "MergedWithNext"), byte_level(False, prefix=True))
    yield sequence(split({"Regex": r"\w+|[^\w\s]+|\h"}), split({"Regex": r"(?<=\d)(?=(?:\d{3})+\b)"}), byte_level(False))


def sentence_pieces(text):
    """Small models of the SentencePiece families, trained on a text: Llama 2 (a normalizer puts the space in front),
    Mistral (Metaspace does, at the start only), Gemma (no space in front), and one that splits at every space."""
    from tokenizers import models, pre_tokenizers, trainers
    trained = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    specials = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    trained.train_from_iterator(text.splitlines(), trainers.BpeTrainer(vocab_size=1800, special_tokens=specials, show_progress=False))
    base = json.loads(trained.to_str())
    base["added_tokens"] = base["added_tokens"][:3]
    base["model"]["byte_fallback"] = True
    replace = lambda a, b: {"type": "Replace", "pattern": {"String": a}, "content": b}
    pieces = [replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    metaspace = lambda scheme, split: {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}
    bos = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
           "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
           "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    rows = {"llama2": ({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")]}, None, pieces + strip),
            "mistral": (None, metaspace("first", False), pieces + strip),
            "gemma": (replace(" ", "▁"), split({"String": " "}, "MergedWithPrevious"), pieces),
            "metaspace": (None, metaspace("always", True), pieces + strip)}
    result = {}
    for name, (normalizer, pre_tokenizer, decoders) in rows.items():
        result[name] = dict(json.loads(json.dumps(base)), normalizer=normalizer, pre_tokenizer=pre_tokenizer, post_processor=bos,
                            decoder={"type": "Sequence", "decoders": decoders})
    return result


def main():
    if sys.argv[1] == "--sentence-pieces":  # TEXT OUT: texts.json of OUT is used as it is
        out, rng = pathlib.Path(sys.argv[3]), random.Random(2)
        texts = json.loads((out / "texts.json").read_text())
        raw = [bytes.fromhex(h) for h in texts["bytes"]]
        for name, value in sentence_pieces(pathlib.Path(sys.argv[2]).read_text()).items():
            (out / f"{name}.json").write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")
            golden = make_golden(Tokenizer.from_file(str(out / f"{name}.json")), texts["texts"], raw, rng)
            # Bytes that are no UTF-8 decode to another number of U+FFFD than the reference's; whole texts do not hold such.
            golden["decode"] = [row for row in golden["decode"] if "\ufffd" not in row["all"]]
            (out / f"{name}.golden.json").write_text(json.dumps(golden, ensure_ascii=True, separators=(",", ":")) + "\n")
        return
    folder, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(1)
    write = lambda name, value: (out / name).write_text(json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n")
    texts, raw = make_texts(rng)
    write("texts.json", {"texts": texts, "bytes": [r.hex() for r in raw]})
    tokenizers = make_tokenizers(folder)
    for name, value in tokenizers.items():
        (out / f"{name}.json").write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")
        write(f"{name}.golden.json", make_golden(Tokenizer.from_file(str(out / f"{name}.json")), texts, raw, rng))
    splits = []
    for pre_tokenizer in split_variants():
        value = dict(tokenizers["smollm2"], pre_tokenizer=pre_tokenizer)
        tokenizer = Tokenizer.from_str(json.dumps(value))
        splits.append({"pre_tokenizer": pre_tokenizer, "ids": [tokenizer.encode(t).ids for t in texts[:NUM_SPLIT_TEXTS]]})
    write("splits.json", splits)


if __name__ == "__main__":
    main()
