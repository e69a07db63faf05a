# SPDX-License-Identifier: Apache-2.0
"""TRL's SFTTrainer on a LoRA adapter of PEFT."""

import os

from datasets import Dataset
from peft import LoraConfig
from texts import TEXTS, language_model, tokenizer
from training import save
from trl import SFTConfig, SFTTrainer


def main() -> None:
    arguments = SFTConfig(
        output_dir=os.environ["TRAINER_OUT"],
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=4,
        num_train_epochs=1,
        disable_tqdm=True,
        report_to=[],
        max_length=24,
        learning_rate=0.01,
        seed=5,
    )
    trainer = SFTTrainer(
        model=language_model(),
        args=arguments,
        train_dataset=Dataset.from_dict({"text": TEXTS}),
        processing_class=tokenizer(),
        peft_config=LoraConfig(r=4, target_modules=["c_attn"], lora_dropout=0.0, task_type="CAUSAL_LM"),
    )
    trainer.train()
    save({name: weight for name, weight in trainer.model.state_dict().items() if "lora" in name})


if __name__ == "__main__":
    main()
