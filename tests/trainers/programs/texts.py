# SPDX-License-Identifier: Apache-2.0
"""A language model, its tokenizer and its texts, made here: nothing is downloaded."""

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed

WORDS = [
    "a",
    "switch",
    "adds",
    "what",
    "each",
    "rank",
    "sends",
    "and",
    "all",
    "ranks",
    "get",
    "one",
    "sum",
    "back",
]
TEXTS = [" ".join(WORDS[start:] + WORDS[:start]) for start in range(len(WORDS))] * 2


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(
        WordLevel({word: index for index, word in enumerate(["[PAD]", "[UNK]", "[EOS]", *WORDS])}, "[UNK]")
    )
    words.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", eos_token="[EOS]", model_max_length=32
    )


def language_model() -> GPT2LMHeadModel:
    set_seed(5)
    ends = {"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 0}
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(WORDS) + 3, n_positions=32, n_embd=16, n_layer=1, n_head=2, **ends, **no_dropout
        )
    )
