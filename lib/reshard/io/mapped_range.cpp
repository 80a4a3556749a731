#include "reshard/io/mapped_range.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>

#include "reshard/base/error.h"

namespace reshard {
namespace {

/// What the signal handler knows of a range. A slot is free while `begin` is 0, and being filled while it is 1.
struct Slot {
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};
  std::atomic<bool> lost{false};
};
constexpr std::uintptr_t kBeingFilled = 1;
constexpr std::size_t kSlots = 4096;
constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, Linux 5.14; not in every libc's headers

std::array<Slot, kSlots> slots;
struct sigaction handler_before;

static_assert(std::atomic<std::uintptr_t>::is_always_lock_free, "the signal handler may not wait");

/// Puts zeros in the place of the range from the page of the fault on. mmap is a plain system call on Linux, and safe
/// here.
bool replace_pages(std::uintptr_t address) {
  const auto page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (Slot& slot : slots) {
    const std::uintptr_t begin = slot.begin;
    const std::uintptr_t end = slot.end;
    // Another thread may have given the slot away in between; that of the range at hand stays as it is.
    if (begin <= kBeingFilled || begin != slot.begin || address < begin || address >= end) continue;
    slot.lost = true;
    const std::uintptr_t page = address / page_bytes * page_bytes;
    void* const zeros = ::mmap(reinterpret_cast<void*>(page), end - page, PROT_READ,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    return zeros != MAP_FAILED;
  }
  return false;
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const int errno_before = errno;
  const bool replaced = replace_pages(reinterpret_cast<std::uintptr_t>(info->si_addr));
  errno = errno_before;
  if (replaced) return;
  if (handler_before.sa_flags & SA_SIGINFO) {
    handler_before.sa_sigaction(signal, info, context);
  } else if (handler_before.sa_handler != SIG_DFL && handler_before.sa_handler != SIG_IGN) {
    handler_before.sa_handler(signal);
  } else {
    ::sigaction(signal, &handler_before, nullptr);  // the access happens again, and ends the program
  }
}

void install_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, &handler_before);
  });
}

/// \returns kSlots if all are taken.
std::size_t take_slot() {
  for (std::size_t i = 0; i < kSlots; ++i) {
    std::uintptr_t free = 0;
    if (slots[i].begin.compare_exchange_strong(free, kBeingFilled)) return i;
  }
  return kSlots;
}

}  // namespace

std::unique_ptr<MappedRange> MappedRange::make(int fd, std::filesystem::path path, std::uint64_t begin_bytes,
                                               std::uint64_t size_bytes) {
  install_handler();
  void* const at = ::mmap(nullptr, size_bytes, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(begin_bytes));
  if (at == MAP_FAILED) return nullptr;
  const std::size_t taken = take_slot();
  if (taken == kSlots) {
    ::munmap(at, size_bytes);
    return nullptr;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  Slot& slot = slots[taken];
  slot.lost = false;
  slot.end = address + size_bytes;
  slot.begin = address;
  auto range = std::unique_ptr<MappedRange>(new MappedRange(
      fd, std::move(path), begin_bytes, std::span(static_cast<const std::byte*>(at), size_bytes), taken));
  // Older kernels do not know it, and fault later. What cannot be had, reading tells better.
  if (::madvise(at, size_bytes, kPopulateRead) != 0 && (errno == EFAULT || errno == EHWPOISON)) return nullptr;
  return range;
}

MappedRange::~MappedRange() {
  slots[slot_].begin = 0;  // before another thread may map something else at this address
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedRange::validate_whole() const {
  // The rest of a file's last page reads as zeros, without a fault, when the file is cut there.
  struct stat status {};
  if (::fstat(fd_, &status) == 0 && static_cast<std::uint64_t>(status.st_size) < end_bytes())
    throw Error(ErrorKind::kIo, "the file ends here, though it was longer when it was opened")
        .in(path_)
        .at_byte(static_cast<std::uint64_t>(status.st_size))
        .hint("another process has cut it; run again when nothing writes to it");
  if (slots[slot_].lost)
    throw Error(ErrorKind::kIo, "could not be read while it was mapped")
        .in(path_)
        .hint("another process has changed it, or the disk fails (see dmesg); `io` read finds where");
}

}  // namespace reshard
