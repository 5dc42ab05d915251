"""Measures how closely a GGUF file is run: KL divergence to, and agreement of the likeliest token with, the dequantised
weights in fp32, teacher-forced on the same tokens, for specdec and for llama.cpp.

  python3 tests/bench/quantised_quality.py BUILD --model FILE.gguf --texts FILE
      [--llama-source SRC --llama-build BUILD] [--count 20] [--tokens 100]

Answers of the model itself to the first lines of FILE (JSON lines with "question") are the
tokens. BUILD is specdec's, with the target teacher_forced. Without llama.cpp only specdec is measured. Prints one JSON
object; needs numpy and tokenizers."""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer


def answers(o, work):
    lines = [json.loads(line)["question"] for line in o.texts.read_text().splitlines()[: o.count]]
    out = []
    for line in lines:
        command = [o.build / "bin/specdec", "generate", "--target", o.model, "--prompt", line, "--temperature", "0"]
        run = subprocess.run(
            [*command, "--max-tokens", str(o.tokens), "--json", "-q"], capture_output=True, text=True, check=True
        )
        result = json.loads(run.stdout.splitlines()[-1])
        tokenizer = Tokenizer.from_file(str(Path(result["inputs"]["target"]["path"]) / "tokenizer.json"))
        out.append(tokenizer.encode(line).ids + result["token_ids"])
    (work / "tokens.json").write_text(json.dumps(out))
    (work / "tokens.txt").write_text("".join(" ".join(map(str, ids)) + "\n" for ids in out))
    return out


def log_softmax(logits):
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def compare(reference, other):
    kl, agree, count = [], 0, len(reference)
    for first in range(0, count, 64):
        p, q = log_softmax(reference[first : first + 64]), log_softmax(other[first : first + 64])
        kl.extend((np.exp(p) * (p - q)).sum(-1).tolist())
        agree += int((p.argmax(-1) == q.argmax(-1)).sum())
    kl = np.array(kl)
    return {
        "mean_kl": float(kl.mean()),
        "standard_error": float(kl.std(ddof=1) / np.sqrt(count)),
        "p99_kl": float(np.quantile(kl, 0.99)),
        "argmax_agreement": agree / count,
    }


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build", type=Path)
    p.add_argument("--model", type=Path, required=True)
    p.add_argument("--texts", type=Path, required=True)
    p.add_argument("--llama-source", type=Path)
    p.add_argument("--llama-build", type=Path)
    p.add_argument("--count", type=int, default=20)
    p.add_argument("--tokens", type=int, default=100)
    o = p.parse_args()
    if (o.llama_build is None) != (o.llama_source is None):
        p.error("give --llama-build and --llama-source together")
    work = Path(tempfile.mkdtemp())
    texts = answers(o, work)
    total = sum(map(len, texts))

    def ours(dtype):
        out = work / f"{dtype}.f32"
        subprocess.run(
            [o.build / "tests/teacher_forced", o.model, dtype, work / "tokens.json", out],
            check=True,
            stderr=subprocess.DEVNULL,
        )
        return np.memmap(out, np.float32, "r").reshape(total, -1)

    reference = ours("fp32")
    result = {"model": o.model.name, "texts": len(texts), "tokens": total, "specdec": compare(reference, ours("auto"))}
    if o.llama_build:
        program = work / "llama_logits"
        lib = o.llama_build / "bin"
        subprocess.run(
            [
                *("g++", "-std=c++17", "-O1", Path(__file__).with_name("llama_logits.cpp"), "-o", program),
                *(f"-I{o.llama_source / d}" for d in ("include", "ggml/include")),
                *(f"-L{lib}", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{lib}"),
            ],
            check=True,
        )
        out = work / "llama.f32"
        subprocess.run([program, o.model, work / "tokens.txt", out], check=True, stderr=subprocess.DEVNULL)
        result["llama.cpp"] = compare(reference, np.memmap(out, np.float32, "r").reshape(total, -1))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
