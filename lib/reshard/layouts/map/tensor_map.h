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
#include "reshard/formats/common/container_keys.h"
#include "reshard/formats/common/tensor_role.h"
#include "reshard/io/zstd_source.h"
#include "reshard/layouts/map/partition.h"
#include "reshard/layouts/map/rank_record.h"
#include "reshard/specs/parallel/mesh.h"
#include "reshard/tensor/recipes/constant.h"
#include "reshard/tensor/values/box.h"
#include "reshard/tensor/values/view.h"

namespace reshard {

struct SavedValue;

/// How a logical tensor is computed: from others of its map, which a target may lack, or, for a constant, from none.
struct Computed {
  std::shared_ptr<const Recipe> recipe;  // not null
  std::vector<std::string> inputs;       // names of logical tensors
  std::vector<std::string> copies{};     // names of logical tensors with the same bytes of a file as an input
};

/// An entry of the model's state dict, or a constant that files contain in addition to it.
struct LogicalTensor {
  std::string name;
  DType dtype;
  Dims shape;
  std::shared_ptr<const Computed> computed;  // null if its pieces contain its values
  TensorRole role = TensorRole::kParameter;

  // In a source map:
  /// The model's dtype if the files have another. The tensor is cast to it unless the request names a dtype.
  std::optional<DType> model_dtype{};
  /// Hint if replicas differ. Set if each rank's tensor is assumed to be whole, which only equal replicas confirm;
  /// otherwise empty. A literal.
  std::string_view unconfirmed_hint{};

  /// Null for tensors of the state dict.
  const Constant* constant() const {
    return computed ? dynamic_cast<const Constant*>(computed->recipe.get()) : nullptr;
  }
  bool is_padding() const { return constant() && constant()->kind() == Constant::Kind::kPadding; }
};

/// A file of a tensor map.
struct MapFile {
  std::filesystem::path path;
  std::uint64_t size_bytes = 0;
  std::uint32_t tp_rank = 0;
  std::uint32_t pp_rank = 0;
  std::uint32_t ep_rank = 0;
  std::optional<RankRecord> record{};  // its rank; in a source, only if the file is read alone
};

/// A file of a source, which exists at `path`.
struct SourceFile : MapFile {
  std::optional<FileStamp> stamp{};  // the state of the file when it was planned
  /// This range of the file is compressed. Offsets and `size_bytes` are those of the decoded bytes.
  std::optional<ZstdFrame> frame{};
  /// Ranges of the file that are zip archives; empty if only the whole file can be one.
  struct Archive {
    std::uint64_t offset_bytes = 0;
    std::uint64_t size_bytes = 0;
  };
  std::vector<Archive> archives{};
  /// Keys of the file's metadata that readers of its tensors may need, without those that any writer adds; null if none.
  std::shared_ptr<const FileMetadata> metadata{};
};

/// A file of a target. `path` is relative to the output directory.
struct TargetFile : MapFile {
  enum class Encoding : std::uint8_t { kSafetensors, kTorch, kTorchTensor, kDcpItems };

  // Its tensors are stored[first_stored] and the stored_count - 1 after it, in the order of the file.
  std::uint32_t first_stored = 0;
  std::uint32_t stored_count = 0;
  Encoding encoding = Encoding::kSafetensors;
  std::vector<TensorAlias> aliases{};
  std::shared_ptr<const SavedValue> structure{};  // the object that contains the tensors; null: a state dict
  std::vector<std::string> objects{};             // with kDcpItems: written after the tensors
  FileMetadata metadata{};                        // with kSafetensors: further keys of its metadata
};

/// A small output file whose content is known before the run.
struct TextFile {
  std::filesystem::path path;  // relative to the output directory
  std::string text;
  std::filesystem::path source;  // the input file it is made from, whose permissions it gets; may be empty
  bool is_last = false;          // written after all tensors, as readers reject tensors that are newer
};

/// A name that occurs in the files of many ranks. Copies share one string.
class SharedName {
 public:
  SharedName(const char* text) : SharedName(std::string(text)) {}
  SharedName(std::string text) : text_(std::make_shared<const std::string>(std::move(text))) {}
  operator const std::string&() const { return *text_; }
  const std::string& text() const { return *text_; }

 private:
  std::shared_ptr<const std::string> text_;  // never null
};

/// A tensor in a file, and the view of it in which pieces are boxes.
struct StoredTensor {
  SharedName name;
  DType dtype;
  Dims shape;              // the view's shape
  std::uint32_t file = 0;  // index of a file of the map
  std::uint64_t offset_bytes = 0;
  PartitionLabel label = PartitionLabel::kWhole;
  bool replicated = false;       // every rank has the whole parameter, and trains it
  bool tied = false;             // the values of another parameter under a second name: compared, never read
  bool expert_parallel = false;  // belongs to experts that are distributed over ranks
  bool is_object = false;        // TensorRole::kObject
  /// The tensor in the file, if it is not the view's shape in C order.
  struct InFile {
    Dims shape;    // in the file
    Dims strides;  // the view's strides, in elements

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
  /// Replaces the view with another one of the same elements.
  void set_view(View view);
  /// Returns the elements of `view`, which begins `offset` elements after the first, as a separate tensor. Its first
  /// element must begin at a whole byte.
  StoredTensor part(std::uint64_t offset, View view) const;
};

/// `box` of a logical tensor is the box of the same size at `stored_begin` of a stored tensor.
struct Piece {
  std::uint32_t stored = 0;  // index into TensorMap::stored
  Box box;
  Dims stored_begin;

  friend bool operator==(const Piece&, const Piece&) = default;
};

/// The stored tensors of a checkpoint and how they map to logical tensors: the common base of sources and targets.
/// `pieces[i]` belong to `logical[i]`.
class TensorMap {
 public:
  virtual ~TensorMap() = default;

  std::vector<StoredTensor> stored;
  std::vector<LogicalTensor> logical;
  std::vector<std::vector<Piece>> pieces;

  /// Returns the file that contains a stored tensor.
  virtual const MapFile& file_of(const StoredTensor& tensor) const = 0;

  /// Reserves memory for `count` logical tensors.
  void reserve_logical(std::size_t count);
  /// Adds a logical tensor if it is new. Returns its index.
  /// \param where  the file that contains it, for errors.
  /// \throws Error kBadInput if it exists with another dtype or shape.
  std::uint32_t add_logical(const LogicalTensor& tensor, const std::filesystem::path& where);
  /// Returns the index of the logical tensor of this name; std::nullopt if it does not exist or is a constant.
  std::optional<std::uint32_t> find_logical(const std::string& name) const;

  /// Returns the number of parameters and buffers of the model. Does not count constants, training state, and tensors
  /// that are computed from others, unless from tensors with TensorRole::kPart.
  std::size_t tensor_count() const;
  /// Whether any stored tensor has padding.
  bool is_padded() const;
  /// Returns the logical tensors that are not computed from others, but those that are from tensors with
  /// TensorRole::kPart instead of these.
  std::vector<LogicalTensor> state_dict() const;

  std::uint32_t add_stored(StoredTensor tensor);

  /// Adds the piece of a stored tensor that is a whole logical tensor.
  /// \throws Error kBadInput as add_logical does.
  void add_whole(std::uint32_t stored, const std::string& logical_name);
  /// Adds the pieces of stored tensor `stored`, which `rule` defines for `rank`.
  /// \throws Error kBadInput if its shape does not fit.
  void add_pieces(std::uint32_t stored, const PartitionRule& rule, std::uint32_t rank);
  /// The same for a rule that is known to fit, and whose part i belongs to `logical[i]`, a tensor of shape `shapes[i]`.
  void add_pieces(std::uint32_t stored, const PartitionRule& rule, std::uint32_t rank,
                  std::span<const std::uint32_t> logical, const std::vector<Dims>& shapes);

  /// Fills `box` of a stored tensor with one value. No-op for an empty box.
  void add_constant(std::uint32_t stored, const Box& box, Constant::Kind kind, std::uint64_t element_bits,
                    TensorRole role = TensorRole::kParameter);

 protected:
  TensorMap() = default;
  TensorMap(const TensorMap&) = default;
  TensorMap(TensorMap&&) = default;
  TensorMap& operator=(const TensorMap&) = default;
  TensorMap& operator=(TensorMap&&) = default;

  /// Adds the contents of another map except its files. Its first file has the number `first_file` here.
  void append_tensors(TensorMap& other, std::uint32_t first_file, const std::string& logical_prefix);
  /// Rebuilds the index of logical tensors by name.
  void index_logical();

 private:
  bool is_entry(const LogicalTensor& tensor) const;
  void add_numbers(std::uint32_t stored, const PartitionRule::Constant& constant, std::uint32_t rank);

  std::unordered_map<std::string, std::uint32_t> logical_by_name_;
  std::unordered_map<std::string, std::uint32_t> constant_by_name_;  // a tensor may have the name of a constant
};

/// A checkpoint to read.
class SourceMap : public TensorMap {
 public:
  std::vector<SourceFile> files;
  /// Hint if replicas differ. Set if the partition was inferred without metadata, which only equal replicas confirm;
  /// otherwise empty.
  std::string inferred_partition_hint;

  /// Returns a file without a path if the map's tensors are in the files of another map, as those of training states.
  const SourceFile& file_of(const StoredTensor& tensor) const override;

  /// Adds a file. \returns its index.
  std::uint32_t add_file(const ContainerFile& file, RankId rank = {});
  /// Adds the files of a container. \returns the index of the first.
  std::uint32_t add_files(const Container& container, RankId rank);
  using TensorMap::add_stored;
  /// Adds a tensor of this container. `first_file` is the result of add_files.
  std::uint32_t add_stored(const TensorEntry& tensor, std::uint32_t first_file,
                           PartitionLabel label = PartitionLabel::kWhole);

  /// Adds a stored tensor that is `box` of a logical one, and has its shape.
  void add_chunk(std::uint32_t logical, StoredTensor chunk, Box box);

  /// Removes logical tensor `tied`, and makes its pieces replicas of `source`, which has the same shape. Later logical
  /// tensors get new indices.
  void tie_logical(std::uint32_t tied, std::uint32_t source);

  /// Replaces all logical tensors and their pieces. Tensor i inherits the properties of the old tensor `from[i]`.
  void set_logical(std::vector<LogicalTensor> tensors, std::vector<std::vector<Piece>> of_tensors,
                   const std::vector<std::uint32_t>& from);

  /// Removes each stored tensor `s` for which `used[s]` is false, with its pieces. The others get new indices.
  void keep_stored(const std::vector<bool>& used);

  /// Adds another checkpoint, with `logical_prefix` in front of the names of its logical tensors.
  /// \throws Error kBadInput as add_logical does.
  void append(SourceMap other, const std::string& logical_prefix);

  /// Renames all logical tensors. The names must differ.
  void rename_logical(const std::vector<std::string>& names);

  /// Sorts the logical tensors in the order of `names`. Those not in `names` come last and keep their order.
  void order_logical(const std::vector<std::string>& names);

 private:
  /// Keeps the logical tensors with the indices `order`, in this order.
  void keep_logical(const std::vector<std::uint32_t>& order);
};

/// A checkpoint to write.
class TargetMap : public TensorMap {
 public:
  std::vector<TargetFile> files;
  /// Pairs of states of the source that must be equal. The second of each pair is written for both.
  std::vector<std::pair<std::string, std::string>> same;
  /// Objects that are not made from tensors: the name that a reader gives them, and their bytes.
  std::vector<std::pair<std::string, std::string>> made_objects;
  std::vector<TextFile> text_files;  // files without tensors that belong to the containers

  const TargetFile& file_of(const StoredTensor& tensor) const override { return files[tensor.file]; }

  /// Adds another checkpoint, with `logical_prefix` in front of the names of its logical tensors.
  /// \throws Error kBadInput as add_logical does.
  void append(TargetMap other, const std::string& logical_prefix);
};

/// Validates that the pieces of each stored tensor tile it without gap or overlap, are inside both tensors, and begin
/// and end at whole bytes.
/// \throws Error naming the tensor, the box and the file: kBadInput, or kUsage for a box that splits a packed byte.
void validate_tiling(const TensorMap& map);

}  // namespace reshard
