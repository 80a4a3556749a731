#include "support/fault_storage.h"

#include "reshard/io/local_storage.h"

namespace reshard::test {
namespace {

using Operation = FaultStorage::Operation;

class WatchedSource final : public Source {
 public:
  WatchedSource(FaultStorage& storage, std::filesystem::path path, std::unique_ptr<Source> inner)
      : storage_(storage), path_(std::move(path)), inner_(std::move(inner)) {}
  std::uint64_t size_bytes() const override { return inner_->size_bytes(); }
  void read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const override {
    const std::uint64_t number = storage_.pass(Operation::kRead, path_);
    storage_.note_read(path_, {offset_bytes, offset_bytes + out.size()});
    if (storage_.cut_at == number) {
      const auto half = out.first(out.size() / 2);
      inner_->read_at(offset_bytes, half);
      throw Error(ErrorKind::kIo, "made to end here").in(path_).at_byte(offset_bytes + half.size());
    }
    inner_->read_at(offset_bytes, out);
  }
  int descriptor() const override { return inner_->descriptor(); }
  const std::filesystem::path& path() const { return path_; }

 private:
  FaultStorage& storage_;
  std::filesystem::path path_;
  std::unique_ptr<Source> inner_;
};

class WatchedSink final : public Sink {
 public:
  WatchedSink(FaultStorage& storage, std::filesystem::path path, std::unique_ptr<Sink> inner)
      : storage_(storage), path_(std::move(path)), inner_(std::move(inner)) {}
  void write_at(std::uint64_t offset_bytes, std::span<const std::byte> bytes) override {
    storage_.pass(Operation::kWrite, path_);
    storage_.note_write(path_, {offset_bytes, offset_bytes + bytes.size()});
    inner_->write_at(offset_bytes, bytes);
  }
  void write_gathered(std::uint64_t offset_bytes, std::span<const std::span<const std::byte>> parts) override {
    storage_.pass(Operation::kWrite, path_);
    std::uint64_t bytes = 0;
    for (const auto part : parts) bytes += part.size();
    storage_.note_write(path_, {offset_bytes, offset_bytes + bytes});
    inner_->write_gathered(offset_bytes, parts);
  }
  bool copy_pays(const Source&, std::uint64_t, std::uint64_t) const override { return storage_.copies_in_kernel; }
  bool copy_from(const Source& source, std::uint64_t source_offset_bytes, std::uint64_t offset_bytes,
                 std::uint64_t size_bytes) override {
    if (!storage_.copies_in_kernel) return false;
    const auto& watched = dynamic_cast<const WatchedSource&>(source);
    storage_.pass(Operation::kRead, watched.path());
    storage_.pass(Operation::kWrite, path_);
    if (!inner_->copy_from(source, source_offset_bytes, offset_bytes, size_bytes)) return false;
    storage_.note_read(watched.path(), {source_offset_bytes, source_offset_bytes + size_bytes});
    storage_.note_write(path_, {offset_bytes, offset_bytes + size_bytes});
    storage_.note_copied(size_bytes);
    return true;
  }
  void finish() override {
    storage_.pass(Operation::kFinish, path_);
    inner_->finish();
  }
  void start_writeback(std::uint64_t offset_bytes, std::uint64_t size_bytes) override {
    storage_.pass(Operation::kWriteBack, path_);
    inner_->start_writeback(offset_bytes, size_bytes);
  }
  void wait_for_writeback(std::uint64_t offset_bytes, std::uint64_t size_bytes) override {
    storage_.pass(Operation::kWriteBack, path_);
    inner_->wait_for_writeback(offset_bytes, size_bytes);
  }
  void sync() override {
    storage_.pass(Operation::kSync, path_);  // what is tested needs no stable storage
  }

 private:
  FaultStorage& storage_;
  std::filesystem::path path_;
  std::unique_ptr<Sink> inner_;
};

}  // namespace

std::uint64_t FaultStorage::pass(Operation operation, const std::filesystem::path& path) {
  const std::uint64_t number = operations_++;
  {
    const std::lock_guard lock(mutex_);
    ++counts_[operation];
    steps_.push_back({operation, path});
  }
  if (before) before(operation, number);
  if (fail_at && number >= *fail_at) throw Error(kind, "made to fail").in(path);
  return number;
}

Files& FaultStorage::files_with(const std::filesystem::path& path) const {
  if (files_ && files_->exists(path)) return *files_;
  return local_storage();
}

std::vector<DirectoryEntry> FaultStorage::list(const std::filesystem::path& directory) {
  pass(Operation::kLook, directory);
  return files_with(directory).list(directory);
}

FileKind FaultStorage::kind_of(const std::filesystem::path& path) {
  pass(Operation::kLook, path);
  return files_with(path).kind_of(path);
}

FileStamp FaultStorage::stamp(const std::filesystem::path& path) {
  return files_with(path).stamp(path);
}

FileStamp FaultStorage::lasting_stamp(const std::filesystem::path& path) {
  return files_with(path).lasting_stamp(path);
}

std::uint64_t FaultStorage::size_bytes(const std::filesystem::path& path) {
  pass(Operation::kLook, path);
  return files_with(path).size_bytes(path);
}

std::filesystem::path FaultStorage::absolute(const std::filesystem::path& path) {
  return files_with(path).absolute(path);
}

std::filesystem::path FaultStorage::resolve(const std::filesystem::path& path) {
  pass(Operation::kLook, path);
  return files_with(path).resolve(path);
}

bool FaultStorage::is_same(const std::filesystem::path& a, const std::filesystem::path& b) {
  return files_with(a).is_same(a, b);
}

void FaultStorage::note_read(const std::filesystem::path& path, Range range) {
  const std::lock_guard lock(mutex_);
  reads_[path.string()].push_back(range);
}

void FaultStorage::note_write(const std::filesystem::path& path, Range range) {
  const std::uint64_t bytes = range.end_bytes - range.begin_bytes;
  if (fail_after_bytes && written_bytes_ + bytes > *fail_after_bytes) throw Error(kind, "made to fail").in(path);
  written_bytes_ += bytes;
  const std::lock_guard lock(mutex_);
  writes_[path.string()].push_back(range);
}

std::unique_ptr<Source> FaultStorage::open(const std::filesystem::path& path) {
  pass(Operation::kOpen, path);
  return std::make_unique<WatchedSource>(*this, path, files_with(path).open(path));
}

std::unique_ptr<Sink> FaultStorage::create(const std::filesystem::path& path, std::uint64_t size_bytes) {
  pass(Operation::kCreate, path);
  return std::make_unique<WatchedSink>(*this, path, local_storage().create(path, size_bytes));
}

std::unique_ptr<Sink> FaultStorage::reopen(const std::filesystem::path& path) {
  pass(Operation::kReopen, path);
  return std::make_unique<WatchedSink>(*this, path, local_storage().reopen(path));
}

std::uint64_t FaultStorage::count(Operation operation) const {
  const std::lock_guard lock(mutex_);
  const auto found = counts_.find(operation);
  return found == counts_.end() ? 0 : found->second;
}

std::vector<FaultStorage::Step> FaultStorage::steps() const {
  const std::lock_guard lock(mutex_);
  return steps_;
}

std::vector<FaultStorage::Range> FaultStorage::reads(const std::filesystem::path& path) const {
  const std::lock_guard lock(mutex_);
  const auto found = reads_.find(path.string());
  return found == reads_.end() ? std::vector<Range>{} : found->second;
}

std::vector<FaultStorage::Range> FaultStorage::writes(const std::filesystem::path& path) const {
  const std::lock_guard lock(mutex_);
  const auto found = writes_.find(path.string());
  return found == writes_.end() ? std::vector<Range>{} : found->second;
}

std::vector<unsigned> FaultStorage::read_counts(const std::filesystem::path& path, std::uint64_t size_bytes) const {
  std::vector<unsigned> counts(size_bytes, 0);
  for (const Range& range : reads(path))
    for (std::uint64_t at = range.begin_bytes; at < range.end_bytes; ++at) ++counts[at];
  return counts;
}

}  // namespace reshard::test
