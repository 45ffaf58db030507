"""Architectures by what their graphs have in common (src/models/*.cpp, b11434)."""

DELTA_NETS = ("qwen3next", "qwen35", "qwen35moe")
GRANITES = ("granitehybrid", "granite", "granitemoe")
NEMOTRONS = ("nemotron_h", "nemotron_h_moe")
GEMMAS = ("gemma", "gemma2", "gemma3", "gemma-embedding")
BERTS = ("bert", "nomic-bert")
_DENSE = ("llama", "mistral3", "qwen2", "qwen2vl", "qwen3", "smollm3", "seed_oss", "granite",
          "ernie4_5", "gemma", "glm4", "phi3", "olmo2", "exaone4", "hunyuan-dense", "exaone",
          "internlm2", "minicpm", "arcee", "qwen3vl", "command-r", "cohere2",
          "starcoder2",
          "stablelm")  # fmt: skip
_MIXTURES = ("qwen2moe", "qwen3moe", "gpt-oss", "granitemoe", "ernie4_5-moe", "glm4moe", "olmoe",
             "dots1", "deepseek", "hunyuan-moe", "lfm2moe", "minimax-m2", "qwen3vlmoe", "llama4",
             "nemotron_h_moe")  # fmt: skip
KNOWN = frozenset({
    *_DENSE, *_MIXTURES, *GEMMAS, "deepseek2", "mamba", "mamba2", "jamba", "granitehybrid",
    "nemotron_h", "lfm2", *DELTA_NETS, *BERTS,
})  # fmt: skip
"""Architectures whose own graphs are drawn; others are drawn like them, or estimated."""
