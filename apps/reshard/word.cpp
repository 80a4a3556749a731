#include "word.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <initializer_list>
#include <thread>
#include <utility>

namespace reshard::cli {
namespace {

using namespace std::chrono_literals;

constexpr auto kWaitForRank0 = 1s;
constexpr auto kNap = 20ms;
constexpr auto kLinger = 300ms;

/// Calls `call` with the address of the abstract socket `name`.
template <typename Call>
int with_address(const std::string& name, const Call& call) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t size_bytes = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), size_bytes);  // after a zero byte: not a file
  const auto all_bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size_bytes);
  return call(reinterpret_cast<const sockaddr*>(&address), all_bytes);
}

int unix_socket() {
  return ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
}

}  // namespace

Word::Word(const std::string& key) : name_(fmt::format("reshard-{}-{}", ::getuid(), key)) {}

Word::~Word() {
  if (socket_ >= 0) ::close(socket_);
}

bool Word::is_taken() const {
  if (socket_ >= 0) return false;
  const int probe = unix_socket();
  if (probe < 0) return false;
  const bool connects = with_address(name_, [&](const sockaddr* address, socklen_t size_bytes) {
                          return ::connect(probe, address, size_bytes);
                        }) == 0;
  ::close(probe);
  return connects;
}

bool Word::take() {
  if (socket_ >= 0) return true;
  const int candidate = unix_socket();
  if (candidate < 0) return true;  // better to report twice than never
  const int status = with_address(
      name_, [&](const sockaddr* address, socklen_t size_bytes) { return ::bind(candidate, address, size_bytes); });
  if (status != 0) {
    const bool is_taken = errno == EADDRINUSE;
    ::close(candidate);
    return !is_taken;
  }
  socket_ = candidate;
  return true;
}

std::string word_key(const Environment& environment) {
  std::string key;
  for (const char* name : {"PMIX_NAMESPACE", "FLUX_JOB_ID", "PALS_APID", "SLURM_JOB_ID", "SLURM_STEP_ID"})
    if (const char* value = environment(name); value != nullptr && *value != '\0') key += fmt::format("{}-", value);
  return key.empty() ? std::to_string(::getppid()) : key;
}

bool takes_word(Word& word, const std::optional<Launcher>& launcher) {
  if (launcher && launcher->rank != 0) {
    const auto until = std::chrono::steady_clock::now() + kWaitForRank0;
    while (std::chrono::steady_clock::now() < until) {
      if (word.is_taken()) return false;
      std::this_thread::sleep_for(kNap);
    }
  }
  return word.take();
}

void linger() {
  std::this_thread::sleep_for(kLinger);
}

}  // namespace reshard::cli
