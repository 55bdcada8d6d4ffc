"""What transformers' AutoTokenizer makes of texts and conversations.

    autotokenizer.py < questions > answers

The questions are JSON: by folder, {"texts": [...], "chats": [...]}. A conversation is
an object of messages and, if there are, tools. The answers are JSON, by folder: of each
text its ids, without further special tokens, and what these are decoded to; of each
conversation its text and ids, without and with the prompt for an answer.
"""
import json
import sys

import transformers
from transformers import AutoTokenizer

transformers.logging.set_verbosity_error()  # on lengths


def answer(folder, texts, chats):
    tok = AutoTokenizer.from_pretrained(folder)
    ids = [tok(text, add_special_tokens=False)["input_ids"] for text in texts]
    rendered, encoded = [], []
    for prompt in (False, True):
        for chat in chats:
            options = {"conversation": chat["messages"], "tools": chat.get("tools"), "add_generation_prompt": prompt}
            rendered.append(tok.apply_chat_template(tokenize=False, **options))
            encoded.append(tok.apply_chat_template(**options))
    return {
        "ids": ids,
        "decoded": [tok.decode(i, clean_up_tokenization_spaces=False) for i in ids],
        "rendered": rendered,
        "encoded": encoded,
    }


questions = json.load(sys.stdin)
json.dump({folder: answer(folder, q["texts"], q["chats"]) for folder, q in questions.items()}, sys.stdout)
