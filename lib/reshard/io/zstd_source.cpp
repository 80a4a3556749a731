#include "reshard/io/zstd_source.h"

#include <algorithm>
#include <list>
#include <mutex>
#include <span>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/io/zstd_idle.h"

#ifdef RESHARD_HAS_ZSTD

#include <zstd.h>
#include <zstd_errors.h>

namespace reshard {
namespace {

constexpr std::size_t kInputBytes = std::size_t{128} << 10;
constexpr std::size_t kSkippedBytes = std::size_t{256} << 10;  // per decode call
constexpr std::size_t kMostIdle = 16;
static_assert((std::size_t{1} << kMaxZstdWindowLog) <= kMaxIdleZstdBytes / 2, "a decoder that waits is not dropped");

/// Decodes a frame sequentially from its start.
class ZstdDecoder {
 public:
  ZstdDecoder(const Source& file, const ZstdFrame& frame, const std::filesystem::path& path)
      : file_(&file), frame_(frame), path_(path), context_(ZSTD_createDCtx()), input_(kInputBytes) {
    if (!context_) throw Error(ErrorKind::kIo, "no memory to decode zstd").in(path_);
    ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax, kMaxZstdWindowLog);
  }

  /// Memory of the decoder, mostly its window.
  std::size_t size_bytes() const { return ZSTD_sizeof_DCtx(context_.get()) + input_.size(); }
  /// Number of decompressed bytes so far.
  std::uint64_t position() const { return position_; }
  bool is_done() const { return done_; }
  /// Whether the whole range of the frame has been consumed.
  bool is_exhausted() const { return taken_ == frame_.length_bytes && buffered_.pos == buffered_.size; }

  /// Decodes up to `out.size()` bytes. \returns the number of bytes; less than that only at the end of the frame.
  std::size_t decode(std::span<std::byte> out) {
    ZSTD_outBuffer made{out.data(), out.size(), 0};
    while (made.pos < made.size && !done_) {
      if (buffered_.pos == buffered_.size) fill();
      const std::size_t result = ZSTD_decompressStream(context_.get(), &made, &buffered_);
      if (ZSTD_isError(result)) throw failed(result);
      done_ = result == 0;
    }
    position_ += made.pos;
    return made.pos;
  }

 private:
  struct Free {
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };

  void fill() {
    const std::size_t bytes = std::min<std::uint64_t>(input_.size(), frame_.length_bytes - taken_);
    if (bytes == 0)
      throw Error(ErrorKind::kBadInput, "its zstd frame continues after its range")
          .in(path_)
          .at_byte(frame_.offset_bytes + frame_.length_bytes)
          .hint("the file is cut off or damaged; fetch it again");
    file_->read_at(frame_.offset_bytes + taken_, std::span(input_).first(bytes));
    taken_ += bytes;
    buffered_ = {input_.data(), bytes, 0};
  }

  Error failed(std::size_t result) const {
    const bool window = ZSTD_getErrorCode(result) == ZSTD_error_frameParameter_windowTooLarge;
    Error error(window ? ErrorKind::kUnsupported : ErrorKind::kBadInput,
                window ? "its zstd frame needs more memory to decode than allowed"
                       : std::string("its zstd frame is damaged: ") + ZSTD_getErrorName(result));
    error.in(path_).at_byte(frame_.offset_bytes);
    if (window) error.hint("save it with a level of 19 or lower");
    return error;
  }

  const Source* file_;
  ZstdFrame frame_;
  std::filesystem::path path_;
  std::unique_ptr<ZSTD_DCtx, Free> context_;
  std::vector<std::byte> input_;
  ZSTD_inBuffer buffered_{nullptr, 0, 0};
  std::uint64_t taken_ = 0;     // compressed bytes read so far
  std::uint64_t position_ = 0;  // decompressed bytes so far
  bool done_ = false;
};

/// Idle decoders of all sources. Keeps the most recently used ones, up to kMaxIdleZstdBytes in total.
class IdleDecoders {
 public:
  /// Returns the decoder of `owner` that is nearest to `position` and not past it, or null.
  std::unique_ptr<ZstdDecoder> take(const Source* owner, std::uint64_t position) {
    const std::lock_guard lock(mutex_);
    auto best = idle_.end();
    for (auto it = idle_.begin(); it != idle_.end(); ++it)
      if (it->first == owner && it->second->position() <= position &&
          (best == idle_.end() || it->second->position() > best->second->position()))
        best = it;
    if (best == idle_.end()) return nullptr;
    auto decoder = std::move(best->second);
    idle_.erase(best);
    bytes_ -= decoder->size_bytes();
    return decoder;
  }

  void put(const Source* owner, std::unique_ptr<ZstdDecoder> decoder) {
    const std::lock_guard lock(mutex_);
    bytes_ += decoder->size_bytes();
    idle_.emplace_front(owner, std::move(decoder));
    while (idle_.size() > kMostIdle || bytes_ > kMaxIdleZstdBytes) {
      bytes_ -= idle_.back().second->size_bytes();
      idle_.pop_back();
    }
  }

  void forget(const Source* owner) {
    const std::lock_guard lock(mutex_);
    idle_.remove_if([&](const auto& one) {
      if (one.first == owner) bytes_ -= one.second->size_bytes();
      return one.first == owner;
    });
  }

  std::size_t size_bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }

 private:
  mutable std::mutex mutex_;
  std::list<std::pair<const Source*, std::unique_ptr<ZstdDecoder>>> idle_;
  std::size_t bytes_ = 0;  // total size of idle_
};

IdleDecoders& idle_decoders() {
  static IdleDecoders decoders;
  return decoders;
}

class ZstdSource final : public Source {
 public:
  ZstdSource(std::unique_ptr<Source> file, const ZstdFrame& frame, std::uint64_t size_bytes,
             const std::filesystem::path& path)
      : file_(std::move(file)), frame_(frame), size_bytes_(size_bytes), path_(path) {}
  ZstdSource(const ZstdSource&) = delete;
  ZstdSource& operator=(const ZstdSource&) = delete;
  ~ZstdSource() override { idle_decoders().forget(this); }

  std::uint64_t size_bytes() const override { return size_bytes_; }

  void read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const override {
    auto decoder = idle_decoders().take(this, offset_bytes);
    if (!decoder) decoder = std::make_unique<ZstdDecoder>(*file_, frame_, path_);
    std::vector<std::byte> skipped;
    while (decoder->position() < offset_bytes) {
      skipped.resize(std::min<std::uint64_t>(kSkippedBytes, offset_bytes - decoder->position()));
      if (decoder->decode(skipped) < skipped.size()) throw too_short();
    }
    if (decoder->decode(out) < out.size()) throw too_short();
    idle_decoders().put(this, std::move(decoder));
  }

 private:
  Error too_short() const {
    return Error(ErrorKind::kIo, "its zstd frame decodes to fewer bytes than before")
        .in(path_)
        .at_byte(frame_.offset_bytes)
        .hint("another process has changed the file; run again when no other process writes to it");
  }

  std::unique_ptr<Source> file_;
  ZstdFrame frame_;
  std::uint64_t size_bytes_;
  std::filesystem::path path_;
};

}  // namespace

std::size_t idle_zstd_bytes() {
  return idle_decoders().size_bytes();
}

std::unique_ptr<Source> open_zstd(std::unique_ptr<Source> file, const ZstdFrame& frame, std::uint64_t size_bytes,
                                  const std::filesystem::path& path) {
  return std::make_unique<ZstdSource>(std::move(file), frame, size_bytes, path);
}

ZstdEnds read_zstd_ends(const Source& file, const ZstdFrame& frame, std::size_t end_bytes, std::uint64_t max_bytes,
                        const std::filesystem::path& path) {
  ZstdDecoder decoder(file, frame, path);
  ZstdEnds ends;
  std::vector<std::byte> block(std::max(kSkippedBytes, end_bytes));
  while (!decoder.is_done()) {
    const std::span<const std::byte> made(block.data(), decoder.decode(block));
    if (decoder.position() > max_bytes)
      throw Error(ErrorKind::kBadInput, "its zstd frame decodes to more than " + std::to_string(max_bytes) + " bytes")
          .in(path)
          .at_byte(frame.offset_bytes);
    const auto in_head = made.first(std::min(made.size(), end_bytes - ends.head.size()));
    ends.head.insert(ends.head.end(), in_head.begin(), in_head.end());
    ends.tail.insert(ends.tail.end(), made.begin(), made.end());
    if (ends.tail.size() > end_bytes)
      ends.tail.erase(ends.tail.begin(), ends.tail.end() - static_cast<std::ptrdiff_t>(end_bytes));
  }
  if (!decoder.is_exhausted())
    throw Error(ErrorKind::kBadInput, "its zstd frame ends before its range").in(path).at_byte(frame.offset_bytes);
  ends.size_bytes = decoder.position();
  return ends;
}

}  // namespace reshard

#else

namespace reshard {
namespace {

Error without_zstd(const std::filesystem::path& path) {
  return Error(ErrorKind::kUnsupported, "is compressed with zstd, which this build does not support")
      .in(path)
      .hint("build with libzstd (libzstd-dev), or save the checkpoint without compression");
}

}  // namespace

std::size_t idle_zstd_bytes() {
  return 0;
}

std::unique_ptr<Source> open_zstd(std::unique_ptr<Source>, const ZstdFrame&, std::uint64_t,
                                  const std::filesystem::path& path) {
  throw without_zstd(path);
}

ZstdEnds read_zstd_ends(const Source&, const ZstdFrame&, std::size_t, std::uint64_t,
                        const std::filesystem::path& path) {
  throw without_zstd(path);
}

}  // namespace reshard

#endif
