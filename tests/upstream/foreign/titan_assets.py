"""Makes the tokenizer and the text that torchtitan's debugging model expects in its working folder.

    titan_assets.py FOLDER

The text is that of Python's own documentation (`pydoc_data.topics`).
"""

import json
import sys
from pathlib import Path
from pydoc_data.topics import topics

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"
VOCABULARY = 2000


def main(folder: Path) -> None:
    texts = [topics[name] for name in sorted(topics)]
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BEGIN, END],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    assets = folder / "tests" / "assets"
    for name in ("tokenizer", "c4_test"):
        (assets / name).mkdir(parents=True)
    tokenizer.save(str(assets / "tokenizer" / "tokenizer.json"))
    (assets / "tokenizer" / "tokenizer_config.json").write_text(json.dumps({"bos_token": BEGIN, "eos_token": END}))
    (assets / "c4_test" / "data.json").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
