#!/usr/bin/env python3
"""Makes the demo's tokenizer files: a byte-level BPE with 1,536 tokens, trained on the demo traffic (tokenizers
0.23.2).

    specdec demo traffic --count 8000 --edition first > first.jsonl
    specdec demo traffic --count 8000 --edition updated > updated.jsonl
    make_tokenizer.py first.jsonl updated.jsonl OUT
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SPECIAL = ["<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>"]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ ('<|assistant|>' if message['role'] == 'assistant' else '<|user|>') + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

*logs, out = sys.argv[1:]
texts = [m["content"] for log in logs for line in open(log) for m in json.loads(line)["messages"]]
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=1536,
    special_tokens=SPECIAL,
    initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    show_progress=False,
)
tokenizer.train_from_iterator(texts, trainer)
tokenizer.post_processor = processors.TemplateProcessing(single=f"{SPECIAL[0]} $A", special_tokens=[(SPECIAL[0], 0)])
out = Path(out)
out.mkdir(parents=True, exist_ok=True)
tokenizer.save(str(out / "tokenizer.json"))
write = lambda name, value: (out / name).write_text(json.dumps(value, indent=1) + "\n")
write(
    "tokenizer_config.json",
    {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[0],
        "eos_token": SPECIAL[3],
        "model_max_length": 512,
        "clean_up_tokenization_spaces": False,
    },
)
write("generation_config.json", {"bos_token_id": 0, "eos_token_id": 3})
(out / "chat_template.jinja").write_text(TEMPLATE)
