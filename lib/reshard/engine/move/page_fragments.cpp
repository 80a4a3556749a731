#include "reshard/engine/move/page_fragments.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/sealed_text.h"
#include "reshard/base/wire.h"
#include "reshard/io/text_file.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFragmentsLine = "reshard fragments 1\n";
constexpr std::string_view kFragments = "fragments-";  // after the prefix, before the number
constexpr std::uint64_t kMostCollectedBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kMostFileBytes = std::uint64_t{1} << 30;

struct Fragment {
  std::uint64_t file = 0;
  std::uint64_t offset_bytes = 0;
  std::string_view bytes;

  static auto fields(auto& self) { return std::tie(self.file, self.offset_bytes, self.bytes); }
};

/// The ends of a file range that are in pages to which other ranks write.
struct Ends {
  std::uint64_t head_bytes = 0;
  std::uint64_t tail_bytes = 0;
};

Ends ends_in(const SharedPages& pages, std::uint32_t file, std::uint64_t offset_bytes, std::uint64_t size_bytes) {
  const std::uint64_t page = pages.page_bytes();
  const std::uint64_t end = offset_bytes + size_bytes;
  Ends ends;
  if (offset_bytes % page != 0 && pages.contains(file, offset_bytes))
    ends.head_bytes = std::min(size_bytes, page - offset_bytes % page);
  const std::uint64_t tail_bytes = end % page;
  if (ends.head_bytes < size_bytes && tail_bytes != 0 && pages.contains(file, end))
    ends.tail_bytes = std::min(size_bytes - ends.head_bytes, tail_bytes);
  return ends;
}

class GuardedSink final : public Sink {
 public:
  GuardedSink(PageFragments& fragments, std::uint32_t file, std::unique_ptr<Sink> inner)
      : fragments_(fragments), file_(file), inner_(std::move(inner)) {}

  void write_at(std::uint64_t offset_bytes, std::span<const std::byte> bytes) override {
    const Ends ends = ends_in(fragments_.pages(), file_, offset_bytes, bytes.size());
    if (ends.head_bytes > 0) fragments_.add(file_, offset_bytes, bytes.first(ends.head_bytes));
    if (ends.tail_bytes > 0)
      fragments_.add(file_, offset_bytes + bytes.size() - ends.tail_bytes, bytes.last(ends.tail_bytes));
    const auto middle = bytes.subspan(ends.head_bytes, bytes.size() - ends.head_bytes - ends.tail_bytes);
    if (!middle.empty()) inner_->write_at(offset_bytes + ends.head_bytes, middle);
  }

  void write_gathered(std::uint64_t offset_bytes, std::span<const std::span<const std::byte>> parts) override {
    std::uint64_t size_bytes = 0;
    for (const auto part : parts) size_bytes += part.size();
    const Ends ends = ends_in(fragments_.pages(), file_, offset_bytes, size_bytes);
    if (ends.head_bytes == 0 && ends.tail_bytes == 0) return inner_->write_gathered(offset_bytes, parts);
    std::vector<std::span<const std::byte>> middle;
    std::uint64_t at = 0;
    const std::uint64_t middle_end = size_bytes - ends.tail_bytes;
    for (const auto part : parts) {
      const auto between = [&](std::uint64_t begin, std::uint64_t end) {
        const std::uint64_t from = std::clamp(begin, at, at + part.size()),
                            to = std::clamp(end, from, at + part.size());
        return part.subspan(from - at, to - from);
      };
      if (const auto head = between(0, ends.head_bytes); !head.empty()) fragments_.add(file_, offset_bytes + at, head);
      if (const auto inside = between(ends.head_bytes, middle_end); !inside.empty()) middle.push_back(inside);
      if (const auto tail = between(middle_end, size_bytes); !tail.empty())
        fragments_.add(file_, offset_bytes + std::max(at, middle_end), tail);
      at += part.size();
    }
    if (!middle.empty()) inner_->write_gathered(offset_bytes + ends.head_bytes, middle);
  }

  bool copy_pays(const Source& source, std::uint64_t source_offset_bytes, std::uint64_t offset_bytes) const override {
    return inner_->copy_pays(source, source_offset_bytes, offset_bytes);
  }

  bool copy_from(const Source& source, std::uint64_t source_offset_bytes, std::uint64_t offset_bytes,
                 std::uint64_t size_bytes) override {
    const Ends ends = ends_in(fragments_.pages(), file_, offset_bytes, size_bytes);
    return ends.head_bytes == 0 && ends.tail_bytes == 0 &&
           inner_->copy_from(source, source_offset_bytes, offset_bytes, size_bytes);
  }

  void start_writeback(std::uint64_t offset_bytes, std::uint64_t size_bytes) override {
    inner_->start_writeback(offset_bytes, size_bytes);
  }
  void wait_for_writeback(std::uint64_t offset_bytes, std::uint64_t size_bytes) override {
    inner_->wait_for_writeback(offset_bytes, size_bytes);
  }
  void finish() override { inner_->finish(); }
  void sync() override { inner_->sync(); }

 private:
  PageFragments& fragments_;
  std::uint32_t file_;
  std::unique_ptr<Sink> inner_;
};

}  // namespace

PageFragments::PageFragments(Storage& storage, fs::path root, std::string prefix, SharedPages pages, bool sync)
    : storage_(storage), root_(std::move(root)), prefix_(std::move(prefix)), pages_(std::move(pages)), sync_(sync) {}

std::unique_ptr<Sink> PageFragments::guard(std::uint32_t file, std::unique_ptr<Sink> sink) {
  return std::make_unique<GuardedSink>(*this, file, std::move(sink));
}

void PageFragments::add(std::uint32_t file, std::uint64_t offset_bytes, std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  collected_ += wire_bytes(
      Fragment{file, offset_bytes, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size())});
  if (collected_.size() > kMostCollectedBytes) write_file();
}

void PageFragments::spill() {
  const std::lock_guard lock(mutex_);
  if (!collected_.empty()) write_file();
}

/// Called under the mutex, so that spill writes everything added before it. If the write fails, the fragments stay
/// collected, and the existing file makes a second attempt fail: otherwise a journal could record them as safe.
void PageFragments::write_file() {
  const std::string text = sealed(kFragmentsLine, collected_);
  std::string name = fmt::format("{}{}{}", prefix_, kFragments, files_.size());
  const auto sink = storage_.create(root_ / name, text.size());
  sink->write_at(0, std::as_bytes(std::span(text)));
  sync_ ? sink->sync() : sink->finish();
  files_.push_back(std::move(name));
  collected_.clear();
}

std::vector<std::string> PageFragments::files() const {
  const std::lock_guard lock(mutex_);
  return files_;
}

bool is_fragments_file(std::string_view name) {
  return name.find(kFragments) != std::string_view::npos;
}

bool is_whole_fragments_file(Files& files, const fs::path& path) noexcept {
  try {
    return unsealed(kFragmentsLine, read_text_file(files, path, kMostFileBytes)).has_value();
  } catch (const std::exception&) {
    return false;
  }
}

std::vector<std::uint32_t> write_fragments(Storage& storage, const fs::path& root,
                                           const std::vector<std::string>& names, const TargetMap& target,
                                           bool skip_torn) {
  std::vector<std::uint32_t> written;
  for (const std::string& name : names) {
    const std::string text = read_text_file(storage, root / name, kMostFileBytes);
    const auto body = unsealed(kFragmentsLine, text);
    if (!body && skip_torn) continue;
    const auto validate = [&](bool holds) {
      if (!holds)
        throw Error(ErrorKind::kBadInput, "contains no fragments of this run")
            .in(root / name)
            .hint("start from scratch once with `clean` instead of `resume`");
    };
    validate(body.has_value());
    std::vector<Fragment> fragments;
    for (WireReader wire(*body); !wire.at_end();) {
      const auto fragment = wire.read<Fragment>();
      validate(fragment.file < target.files.size());
      const std::uint64_t size_bytes = target.files[fragment.file].size_bytes;
      validate(fragment.offset_bytes <= size_bytes && fragment.bytes.size() <= size_bytes - fragment.offset_bytes);
      fragments.push_back(fragment);
    }
    std::stable_sort(fragments.begin(), fragments.end(),
                     [](const Fragment& a, const Fragment& b) { return a.file < b.file; });
    std::unique_ptr<Sink> sink;
    for (const Fragment& fragment : fragments) {
      if (!sink || written.back() != fragment.file) {
        if (sink) sink->finish();
        sink = storage.reopen(root / target.files[fragment.file].path);
        written.push_back(static_cast<std::uint32_t>(fragment.file));
      }
      sink->write_at(fragment.offset_bytes, std::as_bytes(std::span(fragment.bytes)));
    }
    if (sink) sink->finish();
  }
  std::sort(written.begin(), written.end());
  written.erase(std::unique(written.begin(), written.end()), written.end());
  return written;
}

}  // namespace reshard
