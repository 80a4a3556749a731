#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "reshard/formats/common/container.h"
#include "reshard/formats/common/tensor_role.h"
#include "reshard/formats/torch/torch_plan.h"
#include "reshard/io/zstd_source.h"
#include "reshard/layouts/map/partition.h"
#include "reshard/layouts/map/rank_record.h"
#include "reshard/specs/parallel/mesh.h"
#include "reshard/tensor/values/box.h"
#include "reshard/tensor/values/view.h"

namespace reshard {

/// The bits of each element of what is none of the state dict's, or nothing.
class Filler {
 public:
  /// Padding beside others in a stored tensor, the number of a rank, or another constant of the layout.
  enum class Fill : std::uint8_t { kNone, kPadding, kRankNumber, kConstant };

  Filler() = default;
  Filler(std::uint64_t bits, Fill fill = Fill::kPadding) : bits_(bits), fill_(fill) {}

  explicit operator bool() const { return fill_ != Fill::kNone; }
  std::uint64_t operator*() const { return bits_; }
  Fill fill() const { return fill_; }

 private:
  std::uint64_t bits_ = 0;
  Fill fill_ = Fill::kNone;
};

/// An entry of the original state dict.
struct LogicalTensor {
  std::string name;
  DType dtype;
  Dims shape;
  Filler filler;  // none for tensors of the state dict
  /// Of a source: what the model has it in, where the files hold it in another dtype. It is made that, if nobody asks
  /// for another.
  std::optional<DType> model_dtype{};
  TensorRole role = TensorRole::kParameter;
  /// Source only: what to try if replicas differ, where each rank's tensor was taken for the whole one only because
  /// nothing says otherwise. Equal replicas alone confirm it. A literal; else empty.
  std::string_view unconfirmed_hint{};
};

/// One file of a tensor map. Of a source it exists at `path`; of a target it is to be made, and `path` is relative to
/// the output directory.
struct TensorFile {
  enum class Encoding : std::uint8_t { kSafetensors, kTorch, kTorchTensor, kDcpItems };

  std::filesystem::path path;
  std::uint64_t size_bytes = 0;
  std::uint32_t tp_rank = 0;
  std::uint32_t pp_rank = 0;
  std::uint32_t ep_rank = 0;
  // Of a target: its tensors are stored[first_stored] and the stored_count - 1 after it, in the file's order.
  std::uint32_t first_stored = 0;
  std::uint32_t stored_count = 0;
  Encoding encoding = Encoding::kSafetensors;
  std::vector<TensorAlias> aliases;
  std::shared_ptr<const SavedValue> structure;  // of a target: what its tensors lie in; null for a state dict
  std::vector<std::string> objects;             // of a target of items: what comes after its tensors
  std::optional<RankRecord> record;             // which rank it is of: of a target; of a source read as a whole one
  std::optional<FileStamp> stamp;               // of a source: the state of it that the map is about
  /// Of a source: this range of the file is compressed; all offsets and `size_bytes` are in what it decodes to.
  std::optional<ZstdFrame> frame;
  /// A source's: ranges of the file that are zip archives; empty if only the whole file can be one.
  struct Archive {
    std::uint64_t offset_bytes = 0;
    std::uint64_t size_bytes = 0;
  };
  std::vector<Archive> archives;
};

/// A small file of the output whose content is known before the run.
struct TextFile {
  std::filesystem::path path;  // relative to the output directory
  std::string text;
  std::filesystem::path source;  // the input's file that it is made from, whose permissions count; empty if none
  bool is_last = false;          // written after all tensors: readers take what is younger for damaged
};

/// A name that the files of many ranks have: copies share its characters.
class SharedName {
 public:
  SharedName(const char* text) : SharedName(std::string(text)) {}
  SharedName(std::string text) : text_(std::make_shared<const std::string>(std::move(text))) {}
  operator const std::string&() const { return *text_; }
  const std::string& text() const { return *text_; }

 private:
  std::shared_ptr<const std::string> text_;  // never null
};

/// An entry of one file, and the view of it that pieces are boxes of.
struct StoredTensor {
  SharedName name;
  DType dtype;
  Dims shape;              // of the view
  std::uint32_t file = 0;  // index into TensorMap::files
  std::uint64_t offset_bytes = 0;
  PartitionLabel label = PartitionLabel::kWhole;
  bool replicated = false;       // every rank has all of the parameter, and trains it
  bool tied = false;             // another parameter's values under a second name: compared, never read
  bool expert_parallel = false;  // of experts that are spread over ranks
  bool is_object = false;        // of a target: TensorRole::kObject
  /// The tensor in the file, if it is not the view's shape in C order.
  struct InFile {
    Dims shape;    // in the file
    Dims strides;  // of the view, in elements

    friend bool operator==(const InFile&, const InFile&) = default;
  };
  std::shared_ptr<const InFile> in_file;  // null: the view's shape, in C order

  /// 0 if the elements do not fill whole bytes, or if the number of bytes overflows.
  std::uint64_t size_bytes() const { return num_bytes(dtype, shape).value_or(0); }
  /// The shape in the file.
  const Dims& file_shape() const { return in_file ? in_file->shape : shape; }
  Dims strides() const { return in_file ? in_file->strides : c_strides(shape); }
  View view() const { return {shape, strides()}; }
  /// Whether the strides of the view are those of a C-ordered tensor.
  bool is_c_order() const { return !in_file || in_file->strides == c_strides(shape); }
  /// Replaces the view by one of the same elements.
  void set_view(View view);
};

/// `box` of a logical tensor is the box of the same size at `stored_begin` of a stored one.
struct Piece {
  std::uint32_t stored = 0;  // index into TensorMap::stored
  Box box;
  Dims stored_begin;

  friend bool operator==(const Piece&, const Piece&) = default;
};

/// A checkpoint: its files, what they store, and how that maps to the original tensors. `pieces[i]` belong to
/// `logical[i]`.
class TensorMap {
 public:
  std::vector<TensorFile> files;
  std::vector<StoredTensor> stored;
  std::vector<LogicalTensor> logical;
  std::vector<std::vector<Piece>> pieces;
  /// Of a target: states of the source that have to be the same as another one, which stands for both here.
  std::vector<std::pair<std::string, std::string>> same;
  /// Of a target: objects that are made, and not of its tensors, by the name that a reader gives them; what is saved.
  std::vector<std::pair<std::string, std::string>> made_objects;
  std::vector<TextFile> text_files;  // of a target: files without tensors that belong to its containers
  /// What to try where replicas differ, for a source whose partition was inferred without metadata: identical replicas
  /// alone confirm it. Else empty.
  std::string inferred_partition_hint;

  /// Makes room for so many logical tensors.
  void reserve_logical(std::size_t count);
  /// The logical tensor's index; made if it is new.
  /// \throws Error kBadInput if it is known with another dtype or shape; `where` is the file that says so.
  std::uint32_t add_logical(const LogicalTensor& tensor, const std::filesystem::path& where);
  /// The logical tensor of that name that is no filler.
  std::optional<std::uint32_t> find_logical(const std::string& name) const;

  /// Parameters and buffers of the model: fillers are left out, and what else a training run has.
  std::size_t tensor_count() const;
  /// Whether some stored tensor has padding.
  bool is_padded() const;
  std::vector<LogicalTensor> state_dict() const;

  std::uint32_t add_stored(StoredTensor tensor);
  /// Adds the files of a container that was read. \returns the index of its first.
  std::uint32_t add_files(const Container& container, RankId rank);
  /// Adds a tensor of it; `first_file` is what add_files returned.
  std::uint32_t add_stored(const TensorEntry& tensor, std::uint32_t first_file,
                           PartitionLabel label = PartitionLabel::kWhole);

  /// Views a stored tensor of matrices, one behind the other, as one matrix with the rows of all.
  /// \throws Error kUnsupported if their rows have no common stride.
  void view_as_rows(std::uint32_t stored);

  /// Adds the one piece of a stored tensor that is all of an original.
  /// \throws Error kBadInput as add_logical does.
  void add_whole(std::uint32_t stored, const std::string& logical_name);
  /// Adds the pieces that stored tensor `stored` is made of on `rank`.
  /// \throws Error kBadInput if its shape does not fit.
  void add_pieces(std::uint32_t stored, const PartitionRule& rule, std::uint32_t rank);
  /// The same where the rule is known to fit, and which originals its parts are of: `logical[i]` of shape `shapes[i]`.
  void add_pieces(std::uint32_t stored, const PartitionRule& rule, std::uint32_t rank,
                  std::span<const std::uint32_t> logical, const std::vector<Dims>& shapes);

  /// Says that `box` of a stored tensor is filled with one number; nothing for an empty box.
  void add_filler(std::uint32_t stored, const Box& box, std::uint64_t bits, Filler::Fill fill = Filler::Fill::kPadding,
                  TensorRole role = TensorRole::kParameter);

  /// Adds a logical tensor of a source that is what `logical` is, for which the same bytes are read once more. Of
  /// replicas it has one.
  void add_copy(std::uint32_t logical, const std::string& name, TensorRole role);

  /// Makes all that is stored of a source's logical tensor `tied` replicas of `source`, whose shape it has, and removes
  /// it. Later logical tensors get new indices.
  void tie_logical(std::uint32_t tied, std::uint32_t source);

  /// Takes out all logical tensors, each with its pieces.
  std::vector<std::pair<LogicalTensor, std::vector<Piece>>> take_logical();

  /// Takes out the stored tensors `s` that are not wanted, `used[s]`, with all pieces of them. The others get new
  /// numbers; of a source only.
  void keep_stored(const std::vector<bool>& used);

  /// Adds all of another checkpoint, its logical tensors under names that begin with `logical_prefix`.
  /// \throws Error kBadInput as add_logical does.
  void append(TensorMap other, const std::string& logical_prefix);

  /// Gives the logical tensors new names, one each, all different.
  void rename_logical(const std::vector<std::string>& names);

  /// Puts the logical tensors into the order of `names`; those it does not name come last, in their present order.
  void order_logical(const std::vector<std::string>& names);

 private:
  void add_constant(std::uint32_t stored, const PartitionRule::Constant& constant, std::uint32_t rank);

  std::unordered_map<std::string, std::uint32_t> logical_by_name_;
  std::unordered_map<std::string, std::uint32_t> filler_by_name_;  // whose names a tensor may have too
};

/// Validates that the pieces of each stored tensor tile it without gap or overlap, lie inside both tensors, and begin
/// and end at whole bytes.
/// \throws Error naming the tensor, the box and the file: kBadInput, or kUsage for a box that splits a packed byte.
void validate_tiling(const TensorMap& map);

}  // namespace reshard
