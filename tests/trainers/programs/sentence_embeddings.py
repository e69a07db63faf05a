# SPDX-License-Identifier: Apache-2.0
"""sentence-transformers: an encoder made from a configuration, trained on pairs."""

import os
import tempfile

from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.losses import CoSENTLoss
from sentence_transformers.models import Pooling, Transformer
from texts import TEXTS, WORDS, tokenizer
from training import save
from transformers import BertConfig, BertModel, set_seed


def main() -> None:
    set_seed(5)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(
        vocab_size=len(WORDS) + 3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=32,
        **size,
    )
    with tempfile.TemporaryDirectory() as folder:
        BertModel(config).save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        encoder = Transformer(folder, max_seq_length=24)
    model = SentenceTransformer(modules=[encoder, Pooling(16)], device="cpu")
    pairs = Dataset.from_dict(
        {
            "sentence1": TEXTS,
            "sentence2": TEXTS[1:] + TEXTS[:1],
            "score": [index % 5 / 4 for index in range(len(TEXTS))],
        }
    )
    arguments = SentenceTransformerTrainingArguments(
        output_dir=os.environ["TRAINER_OUT"],
        use_cpu=True,
        per_device_train_batch_size=4,
        num_train_epochs=1,
        disable_tqdm=True,
        report_to=[],
        seed=5,
    )
    SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=pairs, loss=CoSENTLoss(model)
    ).train()
    save(model.state_dict())


if __name__ == "__main__":
    main()
