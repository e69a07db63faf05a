# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer with evaluation. On CPUs it accepts no backend but its own choice, gloo."""

import os

import torch
from texts import TEXTS, language_model, tokenizer
from training import BACKEND, save
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments


def main() -> None:
    if BACKEND != "gloo":
        torch.distributed.init_process_group(BACKEND)
    model, words = language_model(), tokenizer()
    data = [words(text) for text in TEXTS]
    arguments = TrainingArguments(
        output_dir=os.environ["TRAINER_OUT"],
        use_cpu=True,
        per_device_train_batch_size=4,
        num_train_epochs=1,
        eval_strategy="epoch",
        logging_steps=1,
        disable_tqdm=True,
        report_to=[],
        seed=5,
    )
    collator = DataCollatorForLanguageModeling(words, mlm=False)
    Trainer(
        model=model, args=arguments, train_dataset=data, eval_dataset=data[:6], data_collator=collator
    ).train()
    save(model.state_dict())


if __name__ == "__main__":
    main()
