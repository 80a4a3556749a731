// Options of other programs, and their equivalents here.

#include "other_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

namespace reshard::cli {
namespace {

struct OtherWord {
  std::string_view word;    // with hyphens
  std::string_view option;  // equivalent in this program, with the same values
};

/// Options with the same meaning as one of this program's.
constexpr OtherWord kSameOptions[] = {
    {"--tensor-parallel-size", "--tp"},
    {"--tensor-model-parallel-size", "--tp"},
    {"--tensor-parallel-degree", "--tp"},
    {"--tp-size", "--tp"},
    {"--tp-degree", "--tp"},
    {"--pipeline-parallel-size", "--pp"},
    {"--pipeline-model-parallel-size", "--pp"},
    {"--pipeline-parallel-degree", "--pp"},
    {"--pp-size", "--pp"},
    {"--pp-degree", "--pp"},
    {"--virtual-pp-size", "--vpp"},
    {"--virtual-pipeline-size", "--vpp"},
    {"--virtual-pipeline-parallel-size", "--vpp"},
    {"--virtual-pipeline-model-parallel-size", "--vpp"},
    {"--expert-parallel-size", "--ep"},
    {"--expert-model-parallel-size", "--ep"},
    {"--ep-size", "--ep"},
    {"--ep-degree", "--ep"},
    {"--kv-replicator", "--kv-size-multiplier"},
    {"--num-parallel-processes", "--threads"},
    {"--fused-qkv", "--fuse-qkv"},
    {"--torch-dtype", "--dtype"},
    {"--start-rank-id", "--start-rank"},
    {"--config-path", "--config"},
    {"--speculative-model", "--draft"},
    {"--speculative-draft-model-path", "--draft"},
    {"--draft-model-tp-degree", "--draft-tp"},
    {"--layout", "--to"},
    {"--to", "--layout"},
};

struct Advice {
  std::string_view word;    // with hyphens
  std::string_view needed;  // option that a command needs for the text to apply; empty: all commands
  std::string_view text;    // after "try: "; options if it begins with one
};

constexpr std::string_view kFirstArgument = "give the path without an option, as the first argument";
constexpr std::string_view kSecondArgument = "give the path without an option, as the second argument";
constexpr std::string_view kZero1 =
    "leave it out for weights, which ZeRO-1 does not shard; --with-optimizer includes the optimizer's states, if the "
    "source is a training run";
constexpr std::string_view kInDescription =
    "--spec, the path of a description of the model, which says how its linears are split and fused";

/// Options that have another meaning here or are unnecessary. Commands with --tp write ranks, commands with --force
/// write.
constexpr Advice kAdvice[] = {
    {"--save-xser", "--tp", "--format xser; for False, leave it out"},
    {"--use-xser", "--tp", "--format xser; for False, leave it out"},
    {"--use-xser", "", "leave it out: the files show whether they are xser"},
    {"--xser", "--tp", "--format xser; for False, leave it out"},
    {"--save-load-xser", "--tp", "--format xser; for False, leave it out"},
    {"--convert-to-xser", "--tp", "--format xser; for False, leave it out"},
    {"--load-xser", "", "leave it out: the files show whether they are xser"},
    {"--convert-from-xser", "--force",
     "leave it out: the files show whether they are xser; --format says how to write"},
    {"--convert-from-xser", "", "leave it out: the files show whether they are xser"},
    {"--qkv-linear", "", "leave it out: the form of attention is found without it"},
    {"--coalesce-qkv", "--fuse-qkv", "--fuse-qkv"},
    {"--hw-backend", "--kv-replication", "--kv-replication adjacent for trn2, --kv-replication tiled for trn1"},
    {"--qkv-kernel-enabled", "--kernels", "--kernels qkv"},
    {"--qkv-nki-kernel-enabled", "--kernels", "--kernels qkv"},
    {"--mlp-kernel-enabled", "--kernels", "--kernels mlp"},
    {"--mlp-tkg-nki-kernel-enabled", "--kernels", "--kernels mlp"},
    {"--quantized-mlp-kernel-enabled", "--kernels", "--kernels mlp,quantized-mlp"},
    {"--out-proj-kernel-enabled", "--kernels", "--kernels out-proj"},
    {"--attn-block-tkg-nki-kernel-enabled", "--kernels", "--kernels out-proj"},
    {"--attn-tkg-nki-kernel-enabled", "--kernels", "--kernels out-proj"},
    {"--attn-tkg-builtin-kernel-enabled", "--kernels", "--kernels out-proj"},
    {"--is-medusa", "--medusa-heads", "--medusa-heads, which takes the file of the heads"},
    {"--enable-fused-speculation", "--draft", "--draft, which takes the draft's directory"},
    {"--enable-eagle-speculation", "--draft", "--draft, which takes the draft's directory"},
    {"--enable-lora", "--adapter", "--adapter, which takes the adapter's directory"},
    {"--max-loras", "--lora-config", "--lora-config, or --for the compiled model's directory"},
    {"--max-lora-rank", "--lora-config", "--lora-config, or --for the compiled model's directory"},
    {"--target-modules", "--lora-config", "--lora-config, or --for the compiled model's directory"},
    {"--fused-rmsnorm-skip-gamma", "--skip-gamma", "--skip-gamma, unless sequence parallelism is enabled"},
    {"--cast-type", "--declared-dtypes", "--declared-dtypes for as-declared"},
    {"--moe-cte-tp-degree", "--moe-cte-ep-degree", "leave it out: it is --tp divided by --moe-cte-ep-degree"},
    {"--moe-tkg-tp-degree", "--moe-tkg-ep-degree", "leave it out: it is --tp divided by --moe-tkg-ep-degree"},
    {"--load-format", "--tp", "--layout, which says for which program the files are"},
    {"--load-format", "", "leave it out: the files show their format"},
    {"--input-dir", "", kFirstArgument},
    {"--checkpoint-dir", "", kFirstArgument},
    {"--model-path", "", kFirstArgument},
    {"--model", "", kFirstArgument},
    {"--checkpoint", "", kFirstArgument},
    {"--model-name-or-path", "", kFirstArgument},
    {"-m", "", kFirstArgument},
    {"-q", "--quiet", "--quiet"},
    {"-v", "", "reshard --version"},
    {"--version", "", "reshard --version"},
    {"-j", "--threads", "--threads"},
    {"--nnm-ckpt-path", "", kFirstArgument},
    {"--pretrained-weight", "", kFirstArgument},
    {"--quantized-checkpoints-path", "", kFirstArgument},
    {"--hf-model-name", "", "give the path of the model without an option, as the first argument"},
    {"--output-dir", "--force", kSecondArgument},
    {"--output", "--force", kSecondArgument},
    {"--compiled-model-path", "--force", kSecondArgument},
    {"--serialize-path", "--force", kSecondArgument},
    {"--nxdt-ckpt-path", "--force", kSecondArgument},
    {"--quantized", "", "leave it out: a quantised model is given as the first argument, and reshard quantises none"},
    {"--quantization-type", "--quantization", "--quantization TYPE:DTYPE, or --for the compiled model's directory"},
    {"--quantization-dtype", "--quantization", "--quantization TYPE:DTYPE, or --for the compiled model's directory"},
    {"--modules-to-not-convert", "--quantization",
     "--quantization TYPE:DTYPE:MODULES, or --for the compiled model's directory"},
    {"--nxdt-yaml-config", "--config", "--config, which takes the model's config.json"},
    {"--zero-1", "--with-optimizer", kZero1},
    {"--use-zero-1", "--with-optimizer", kZero1},
    {"--zero-1", "", "leave it out: ZeRO-1 shards the optimizer's states, but not the weights"},
    {"--use-zero1-optimizer", "--with-optimizer", kZero1},
    {"--use-zero1-optimizer", "", "leave it out: ZeRO-1 shards the optimizer's states, but not the weights"},
    {"--nproc-per-node", "", "leave it out: --threads says how many threads to use"},
    {"--auto-partition", "--pp", "leave it out: --pp divides the layers evenly unless --pipeline-cuts is given"},
    {"--disable-embedding-parallelization", "",
     "leave it out: the files show whether embeddings are whole on every rank"},
    {"--load-on-device", "", "leave it out: reshard writes files, and the program that loads them uses the device"},
    {"--load-step", "--tag", "--tag, which takes the name of the step's folder"},
    {"--draft-model-path", "--draft",
     "--draft for a fused speculation; shard the draft of another one into a directory of its own"},
    {"--lora-ckpt-path", "--adapter", "--adapter, which takes the adapter's directory"},
    {"--lora-model-ids", "--adapter", "--adapter, which takes the adapter's directory"},
    {"--skip-sharding", "", "compile with it, then run reshard shard into the compiled model's directory"},
    {"--convert-from-full-state", "", "reshard shard reads whole models; its --layout says for which program"},
    {"--convert-to-full-state", "", "reshard consolidate writes whole models"},
    {"--resume-from-checkpoint", "", kFirstArgument},
    {"--async-save", "--force", "leave it out: reshard ends when all files are written"},
    {"--lazy-load", "", "leave it out: reshard reads no more at a time than fits into --max-memory"},
    {"--param-init-fn", "", "leave it out: all values come from the checkpoint"},
    {"--save-weights", "", "leave it out: reshard writes weights, and no compiled model"},
    {"--overwrite-output-dir", "--force", "--force"},
    {"--neuron-cores", "--tp", "--tp"},
    {"--stride", "--spec", kInDescription},
    {"--fuse-axis", "--spec", kInDescription},
    {"--original-dims", "--spec", kInDescription},
    {"--linear-names", "--spec", kInDescription},
    {"--transformer-layer-cls", "", "leave it out: the layers are found without it"},
    {"--model-style", "--model-source",
     "--model-source megatron for that style of NxD Training's ranks; leave it out for the style hf"},
    {"--model-key", "", "leave it out: the state dict in a file is found without it"},
    {"--n-layers", "", "leave it out: config.json says how many layers there are"},
    {"--num-cores", "--tp", "--tp"},
    {"--world-size", "--tp", "leave it out: --tp, --pp and --ep say how many ranks there are"},
    {"--enable-parallel-processing", "", "leave it out: --threads says how many threads to use"},
    {"--auto-cast-type", "--dtype", "--dtype"},
    {"--bf16", "--dtype", "--dtype bfloat16"},
    {"--fp16", "--dtype", "--dtype float16"},
    {"--local-ranks-size", "--end-rank", "--end-rank, which is the last rank and not a count"},
    {"--save-sharded-checkpoint", "", "leave it out: reshard shard and reshard convert write shards"},
};

/// Options of NxD Inference's inference_demo, of optimum-cli and of trainers that do not change the weights.
constexpr std::string_view kRuntimeOptions[] = {
    "--attn-kernel-enabled",
    "--auto-cast",
    "--batch-size",
    "--block-size",
    "--cache-dir",
    "--compile-only",
    "--compiler-workdir",
    "--ctx-batch-size",
    "--dataset-config-name",
    "--dataset-name",
    "--disable-neuron-cache",
    "--disable-validation",
    "--disable-sequence-parallel",
    "--do-train",
    "--dynamic-batch-size",
    "--enable-bucketing",
    "--enable-saturate-infinity",
    "--flash-decoding-enabled",
    "--gradient-checkpointing",
    "--instance-type",
    "--kv-cache-quant",
    "--logical-nc-config",
    "--logical-neuron-cores",
    "--max-batch-size",
    "--max-context-length",
    "--max-new-tokens",
    "--model-type",
    "--n-positions",
    "--num-microbatches",
    "--on-device-sampling",
    "--per-device-train-batch-size",
    "--priority-model-key",
    "--prompt",
    "--seq-len",
    "--sequence-length",
    "--skip-compile",
    "--skip-warmup",
    "--sequence-parallel-enabled",
    "--task",
    "--task-type",
    "--tkg-batch-size",
    "--trust-remote-code",
    "--use-flash-attention",
};

std::string with_hyphens(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

bool is_word(std::string_view argument, std::string_view lower) {
  return argument.size() == lower.size() &&
         std::equal(argument.begin(), argument.end(), lower.begin(), [](char a, char b) { return (a | 0x20) == b; });
}

/// Maps the trainer's setting qkv_linear, True or False, to --qkv-linear, which has three values.
void name_qkv_linear(std::vector<std::string>& arguments) {
  constexpr std::string_view kOption = "--qkv-linear";
  const auto own_value = [](const std::string& value) -> std::string {
    return is_word(value, "true") ? "on" : is_word(value, "false") ? "off" : value;
  };
  for (std::size_t i = 1; i < arguments.size() && arguments[i] != "--"; ++i) {
    const std::size_t end = std::min(arguments[i].find('='), arguments[i].size());
    if (std::string_view(arguments[i]).substr(0, end) != kOption) continue;
    if (end < arguments[i].size())
      arguments[i] = fmt::format("{}={}", kOption, own_value(arguments[i].substr(end + 1)));
    else if (i + 1 < arguments.size())
      arguments[i + 1] = own_value(arguments[i + 1]);
  }
}

/// Returns the option of `command` that an unknown option `name` corresponds to; std::nullopt if there is no such
/// option.
std::optional<Option> meant_option(const Command& command, const std::string& name) {
  for (const std::string& candidate : {with_hyphens(name), own_option(name)})
    if (const auto option = command.find_option(candidate)) return option;
  return std::nullopt;
}

}  // namespace

std::vector<std::string> option_names(const Command& command) {
  std::vector<std::string> names;
  for (const Option& option : command.options()) {
    for (const std::string& name : option.long_names()) names.push_back("--" + name);
    for (const std::string& name : option.short_names()) names.push_back("-" + name);
  }
  return names;
}

std::string own_option(const std::string& name) {
  std::string word = with_hyphens(name);
  for (const OtherWord& row : kSameOptions)
    if (row.word == word) return std::string(row.option);
  return word;
}

std::optional<std::string> advice_on(const Command& command, const std::string& name) {
  const std::string word = with_hyphens(name);
  const auto has = [](const Command& program, const Advice& row) {
    return row.needed.empty() || program.find_option(std::string(row.needed));
  };
  if (std::find(std::begin(kRuntimeOptions), std::end(kRuntimeOptions), word) != std::end(kRuntimeOptions))
    return "leave it out: it does not change the weights";
  const Advice* of_others = nullptr;
  for (const Advice& row : kAdvice) {
    if (row.word != word) continue;
    if (has(command, row)) return std::string(row.text);
    if (row.text.starts_with("--")) of_others = &row;
  }
  const auto program = command.parent();
  const auto convert = program ? program->find_subcommand("convert") : std::nullopt;
  if (of_others == nullptr || !convert || !has(*convert, *of_others)) return std::nullopt;
  return fmt::format("reshard convert has {}", of_others->text);
}

std::vector<std::string> in_own_words(const Command& program, std::vector<std::string> arguments) {
  if (!arguments.empty() && arguments.front() == "help") {
    if (arguments.size() > 1 && !program.find_subcommand(arguments[1])) return {arguments[1]};  // reports an error
  }
  const auto command = arguments.empty() ? std::nullopt : program.find_subcommand(arguments.front());
  if (!command) return arguments;
  const std::vector<std::string> known = option_names(*command);
  std::vector<std::string> own{arguments.front()};
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      std::copy(arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end(), std::back_inserter(own));
      break;
    }
    const std::size_t end = std::min(argument.find('='), argument.size());
    const std::string name = argument.substr(0, end);
    std::optional<Option> option;
    if (name.starts_with("--") && std::find(known.begin(), known.end(), name) == known.end())
      option = meant_option(*command, name);
    if (!option) {
      own.push_back(argument);
      continue;
    }
    const std::string meant = "--" + option->long_names().front();
    const bool is_flag = option->is_switch();
    const bool has_value = is_flag && end == argument.size() && i + 1 < arguments.size() &&
                           (is_word(arguments[i + 1], "true") || is_word(arguments[i + 1], "false"));
    if (!has_value) {
      own.push_back(meant + argument.substr(end));
    } else if (is_word(arguments[++i], "true")) {
      own.push_back(meant);
    }
  }
  name_qkv_linear(own);
  return own;
}

}  // namespace reshard::cli
