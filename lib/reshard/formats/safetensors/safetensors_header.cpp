#include "reshard/formats/safetensors/safetensors_header.h"

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

constexpr std::size_t kHeaderLengthBytes = 8;  // the u64 before the JSON, for byte offsets in errors
constexpr std::size_t kMaxNdim = 1024;         // torch allows 64; millions would only waste memory
constexpr std::size_t kMaxExtraFieldWarnings = 3;

/// Handles the parser's events and tracks the position in the header, with one state for each place of a value.
class HeaderReader {
 public:
  using number_integer_t = std::int64_t;
  using number_unsigned_t = std::uint64_t;
  using number_float_t = double;
  using string_t = std::string;
  using binary_t = nlohmann::json::binary_t;

  explicit HeaderReader(const std::filesystem::path& path) : path_(path) {}

  SafetensorsHeader take() { return std::move(header_); }

  bool null() { return scalar("null"); }
  bool boolean(bool) { return scalar("a boolean"); }
  bool number_integer(number_integer_t) { return scalar("a negative number"); }
  bool number_float(number_float_t, const string_t& text) { return scalar(printable(text)); }
  bool binary(binary_t&) { return scalar("binary"); }

  bool number_unsigned(number_unsigned_t value) {
    if (state_ == State::kShape) {
      if (shape_->size() == kMaxNdim)
        fail("its shape has more than 1024 dims, and no tensor library creates such tensors");
      return shape_->push_back(value), true;
    }
    if (state_ == State::kOffsets) {
      if (offsets_->size() == 2) fail("data_offsets has more than two numbers");
      return offsets_->push_back(value), true;
    }
    return scalar(std::to_string(value));
  }

  bool string(string_t& value) {
    if (state_ == State::kMetadata) {
      header_.metadata.emplace_back(std::move(metadata_key_), std::move(value));
      return true;
    }
    if (state_ == State::kDType) {
      dtype_ = dtype_from_name(value);
      if (!dtype_) fail("has the dtype \"" + printable(value) + "\", which safetensors does not define");
      return state_ = State::kField, true;
    }
    return scalar("\"" + printable(value) + "\"");
  }

  bool start_object(std::size_t) {
    deepen();
    if (skipping_ > 0) return ++skipping_, true;
    switch (state_) {
      case State::kStart: state_ = State::kTop; return true;
      case State::kMetadataValue: state_ = State::kMetadata; return true;
      case State::kTensor: state_ = State::kField; return true;
      case State::kUnknownField: return ++skipping_, true;
      case State::kTop:
      case State::kMetadata:
      case State::kField:
      case State::kDType:
      case State::kShapeValue:
      case State::kShape:
      case State::kOffsetsValue:
      case State::kOffsets: break;
    }
    return unexpected("an object");
  }

  bool key(string_t& value) {
    if (skipping_ > 0) return true;
    if (state_ == State::kTop) return top_key(value);
    if (state_ == State::kMetadata) {
      if (!metadata_keys_.insert(value).second) fail("__metadata__ has the key \"" + printable(value) + "\" twice");
      return metadata_key_ = std::move(value), true;
    }
    return field_key(value);
  }

  bool end_object() {
    --depth_;
    if (skipping_ > 0) {
      if (--skipping_ == 0) state_ = State::kField;
      return true;
    }
    if (state_ == State::kField) finish_tensor();
    state_ = depth_ == 0 ? State::kStart : State::kTop;
    return true;
  }

  bool start_array(std::size_t) {
    deepen();
    if (skipping_ > 0) return ++skipping_, true;
    if (state_ == State::kShapeValue) return shape_.emplace(), state_ = State::kShape, true;
    if (state_ == State::kOffsetsValue) return offsets_.emplace(), state_ = State::kOffsets, true;
    if (state_ == State::kUnknownField) return ++skipping_, true;
    return unexpected("an array");
  }

  bool end_array() {
    --depth_;
    if (skipping_ > 0) {
      if (--skipping_ == 0) state_ = State::kField;
      return true;
    }
    state_ = State::kField;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) {
    throw Error(ErrorKind::kBadInput, "the header is not valid JSON (or not UTF-8)")
        .in(path_)
        .at_byte(kHeaderLengthBytes + (position > 0 ? position - 1 : 0))
        .hint("the file is damaged, or not safetensors: fetch it again");
  }

 private:
  enum class State {
    kStart,
    kTop,            // between tensors
    kMetadataValue,  // after the key __metadata__
    kMetadata,       // inside its object
    kTensor,         // after a tensor's name
    kField,          // inside a tensor's object
    kDType,          // after a key of that object
    kShapeValue,
    kShape,  // inside the array
    kOffsetsValue,
    kOffsets,
    kUnknownField,
  };

  [[noreturn]] void fail(const std::string& message) const {
    Error error(ErrorKind::kBadInput, message);
    error.in(path_);
    if (!name_.empty()) error.tensor(name_);
    throw error;
  }

  void deepen() {
    if (++depth_ > kMaxJsonDepth) fail("the header is nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
  }

  bool scalar(const std::string& found) {
    if (skipping_ > 0) return true;
    if (state_ == State::kUnknownField) return state_ = State::kField, true;
    return unexpected(found);
  }

  bool unexpected(const std::string& found) const {
    switch (state_) {
      case State::kStart: fail("the header is " + found + ", expected an object of tensors");
      case State::kMetadataValue: fail("__metadata__ is " + found + ", expected an object of strings");
      case State::kMetadata:
        fail("__metadata__ has " + found + " under \"" + printable(metadata_key_) + "\", expected a string");
      case State::kDType: fail("dtype is " + found + ", expected a string");
      case State::kShapeValue: fail("shape is " + found + ", expected an array of whole numbers");
      case State::kShape: fail("shape contains " + found + ", expected unsigned 64-bit whole numbers");
      case State::kOffsetsValue: fail("data_offsets is " + found + ", expected two whole numbers");
      case State::kOffsets: fail("data_offsets contains " + found + ", expected two unsigned 64-bit whole numbers");
      case State::kTop:
      case State::kTensor:
      case State::kField:
      case State::kUnknownField: break;
    }
    fail("is " + found + ", expected an object with dtype, shape and data_offsets");
  }

  bool top_key(std::string& value) {
    name_.clear();
    if (value == "__metadata__") {
      if (std::exchange(metadata_seen_, true)) fail("the header has __metadata__ twice");
      return state_ = State::kMetadataValue, true;
    }
    name_ = std::move(value);
    if (has_control(name_)) fail("the name contains control characters");
    if (!names_.insert(name_).second) fail("the header has this name twice");
    dtype_.reset();
    shape_.reset();
    offsets_.reset();
    return state_ = State::kTensor, true;
  }

  bool field_key(const std::string& key) {
    const auto enter = [&](bool seen, State state) {
      if (seen) fail("has \"" + key + "\" twice");
      state_ = state;
      return true;
    };
    if (key == "dtype") return enter(dtype_.has_value(), State::kDType);
    if (key == "shape") return enter(shape_.has_value(), State::kShapeValue);
    if (key == "data_offsets") return enter(offsets_.has_value(), State::kOffsetsValue);
    if (header_.warnings.size() < kMaxExtraFieldWarnings)
      header_.warnings.push_back("tensor " + printable(name_) + " has the unknown field \"" + printable(key) +
                                 "\", which is ignored");
    return state_ = State::kUnknownField, true;
  }

  void finish_tensor() {
    if (!dtype_) fail("has no dtype");
    if (!shape_) fail("has no shape");
    if (!offsets_) fail("has no data_offsets");
    if (offsets_->size() != 2) fail("data_offsets has " + std::to_string(offsets_->size()) + " numbers, expected two");
    // Copies the name: unlike the parser's string, a copy has no spare capacity, and there may be a million names.
    header_.tensors.push_back({name_, *dtype_, std::move(*shape_), (*offsets_)[0], (*offsets_)[1]});
    name_.clear();
  }

  const std::filesystem::path& path_;
  SafetensorsHeader header_;
  State state_ = State::kStart;
  std::size_t depth_ = 0;
  std::size_t skipping_ = 0;  // nesting depth inside the value of an unknown field
  bool metadata_seen_ = false;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> metadata_keys_;
  std::string name_;
  std::string metadata_key_;
  std::optional<DType> dtype_;
  std::optional<Dims> shape_;
  std::optional<Dims> offsets_;
};

}  // namespace

SafetensorsHeader parse_header_json(std::string_view json, const std::filesystem::path& path) {
  // The JSON library treats a NUL as the end of the text and skips a byte order mark; the format allows neither.
  if (const auto nul = json.find('\0'); nul != std::string_view::npos)
    throw Error(ErrorKind::kBadInput, "the header contains a NUL byte; padding must be spaces")
        .in(path)
        .at_byte(kHeaderLengthBytes + nul)
        .hint("the tool that wrote the file padded its header with zeros; rewrite the file with a correct writer");
  if (json.substr(0, 3) == "\xEF\xBB\xBF")
    throw Error(ErrorKind::kBadInput, "the header begins with a byte order mark").in(path).at_byte(kHeaderLengthBytes);
  HeaderReader reader(path);
  nlohmann::json::sax_parse(json, &reader);
  return reader.take();
}

}  // namespace reshard
