// A rank file that was copied over another.

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/ranks/rank_format.h"
#include "support/files.h"
#include "support/golden.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// The shards folder of a reference's checkpoint, as a copy that can be changed.
struct Reference {
  explicit Reference(const fs::path& golden_case) : config(golden_case / "original") {
    for (const auto& entry : fs::recursive_directory_iterator(golden_case)) {
      if (!entry.is_directory() || !found.path.empty()) continue;
      const auto shards = find_shards(local_storage(), entry.path());
      if (shards && shards->layout->ranks() != nullptr && !shards->is_empty) found = *shards;
    }
    if (found.path.empty()) return;
    const fs::path inside = fs::relative(found.path, golden_case);
    fs::copy(golden_case, temp / "case", fs::copy_options::recursive);
    for (const auto& entry : fs::recursive_directory_iterator(temp.path()))
      fs::permissions(entry.path(), fs::perms::owner_all, fs::perm_options::add);
    found.path = temp / "case" / inside;
    found.directory = found.path;
  }

  Checkpoint read(ConfigUse use) const {
    ReadContext context{.use = use};
    if (fs::exists(config / "config.json")) context.config = {config, true};
    return read_checkpoint(local_storage(), found.path, context);
  }
  bool can_be_read() const {
    try {
      read(ConfigUse::kStrict);
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  TempDir temp;
  fs::path config;
  FoundLayout found;
};

/// Replaces the weights of one rank by those of another.
void copy_over(const RankFile& from, const RankFile& to) {
  const auto replace = [](const fs::path& source, const fs::path& target) {
    fs::remove_all(target);
    fs::copy(source, target, fs::copy_options::recursive);
  };
  replace(from.path, to.path);
  for (std::size_t i = 0; i < from.more_parts.size(); ++i) replace(from.more_parts[i], to.more_parts[i]);
  if (from.format == Format::kXser) replace(from.path.string() + ".tensors", to.path.string() + ".tensors");
}

/// The error that reading gives, or else all notes.
std::string problem_of(const Reference& reference) {
  try {
    std::string notes;
    for (const std::string& note : reference.read(ConfigUse::kStrict).notes) notes += note + "\n";
    return notes;
  } catch (const Error& error) {
    CHECK((error.kind() == ErrorKind::kBadInput || error.kind() == ErrorKind::kUnsupported));
    return "refused";
  }
}

TEST_CASE("A rank file that was copied over another of its stage is found in checkpoints of all reference systems") {
  std::size_t checked = 0;
  for (const char* folder : {"converter", "lora", "neuron", "nxdi", "nxdi_compiled", "nxdi_kernels", "optimum",
                             "preshard", "sglang", "vllm", "zero1"})
    for (const fs::path& golden_case : golden_cases(folder)) {
      // Every rank has all of an adapter that was gathered.
      if (golden_case.filename().string().starts_with("lora-gathered")) continue;
      const Reference reference(golden_case);
      if (reference.found.path.empty() || !reference.can_be_read()) continue;
      const std::vector<RankFile> ranks = list_rank_files(local_storage(), reference.found);
      const auto other = std::find_if(ranks.rbegin(), ranks.rend(), [&](const RankFile& file) {
        return file.rank.dp_rank == 0 && file.rank.pp_rank == ranks.front().rank.pp_rank;
      });
      if (other->path == ranks.front().path) continue;
      INFO(golden_case << ": " << ranks.front().path.filename() << " over " << other->path.filename());
      copy_over(ranks.front(), *other);
      CHECK(problem_of(reference) == "refused");
      ++checked;
    }
  CHECK(checked > 80);
}

TEST_CASE("Equal experts on two expert-parallel ranks are noted, unless they differ on another tensor-parallel rank") {
  const Reference reference(testdata("golden/neuron/mixtral-tp2-ep2"));
  const std::vector<RankFile> ranks = list_rank_files(local_storage(), reference.found);
  const auto file_of = [&](std::uint32_t tp_rank, std::uint32_t ep_rank) {
    return *std::find_if(ranks.begin(), ranks.end(), [&](const RankFile& file) {
      return file.rank.tp_rank == tp_rank && file.rank.ep_rank == ep_rank;
    });
  };
  const auto equal_in = [&](std::uint32_t tp_rank) {
    return "expert-parallel ranks 0 and 1 have equal experts in " + file_of(tp_rank, 0).path.string() + " and " +
           file_of(tp_rank, 1).path.string();
  };
  copy_over(file_of(1, 0), file_of(1, 1));
  check_refused([&] { reference.read(ConfigUse::kStrict); },
                {.path = file_of(1, 1).path,
                 .says = equal_in(1) + ", but not on all tensor-parallel ranks",
                 .hint = "one rank file was copied over the other"});
  copy_over(file_of(0, 0), file_of(0, 1));
  CHECK_THAT(problem_of(reference), Says(equal_in(0) + ": unless they were initialised so"));
}

TEST_CASE("Ranks of constant tensors, or of such that repeat themselves, may be equal") {
  for (const bool is_constant : {true, false}) {
    const Reference reference(testdata("golden/vllm/llama-tp2"));
    for (const RankFile& rank : list_rank_files(local_storage(), reference.found)) {
      TensorMap tensors = read_tensors(rank.path);
      for (auto& [name, tensor] : tensors) {
        if (tensor.dtype != DType::kBF16 || tensor.shape.size() < 2) continue;
        const std::size_t row_bytes = tensor.bytes.size() / tensor.shape[0];
        for (std::size_t i = 0; i < tensor.bytes.size(); ++i)
          tensor.bytes[i] = is_constant || name.find("qkv_proj") != name.npos  // equal heads are refused
                                ? '\0'
                                : static_cast<char>(i % row_bytes % 64);
      }
      write_safetensors(rank.path, tensors);
    }
    CHECK(problem_of(reference).find("refused") == std::string::npos);
  }
}

TEST_CASE("inspect shows a rank that was copied over another, with a note") {
  const Reference reference(testdata("golden/optimum/granite-tied-tp2"));
  const std::vector<RankFile> ranks = list_rank_files(local_storage(), reference.found);
  copy_over(ranks[0], ranks[1]);
  std::string notes;
  for (const std::string& note : reference.read(ConfigUse::kLenient).notes) notes += note + "\n";
  CHECK_THAT(notes, Says("tensor-parallel ranks 0 and 1 have the same bytes"));
  check_refused([&] { reference.read(ConfigUse::kStrict); },
                {.path = ranks[1].path,
                 .says = "tensor-parallel ranks 0 and 1 have the same bytes, although they should "
                         "have different parts of",
                 .hint = "one rank file was copied over the other"});
}

}  // namespace
}  // namespace reshard::test
