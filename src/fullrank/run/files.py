from fullrank.files import read_json, read_jsonl, write_json, write_text  # noqa: D100, F401
