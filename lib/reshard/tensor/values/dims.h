#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>

namespace reshard {

/// One number per dim, outermost first. As a shape: sizes in elements; `{}` is a scalar. As an index: positions.
///
/// A sequence like std::vector<std::uint64_t> that stores up to two numbers, the dims of a matrix, without allocating:
/// a plan for a large model on many ranks has millions of Dims.
class Dims {
 public:
  using value_type = std::uint64_t;

  Dims() = default;
  explicit Dims(std::size_t size, std::uint64_t value = 0) { resize(size, value); }
  Dims(std::initializer_list<std::uint64_t> values) { assign(values.begin(), values.end()); }
  Dims(const Dims& other) { assign(other.begin(), other.end()); }
  Dims(Dims&& other) noexcept { swap(other); }
  Dims& operator=(const Dims& other) {
    if (this != &other) assign(other.begin(), other.end());
    return *this;
  }
  Dims& operator=(Dims&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Dims() {
    if (is_far()) std::allocator<std::uint64_t>().deallocate(place_.far, capacity_);
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::uint64_t* begin() { return is_far() ? place_.far : place_.near; }
  std::uint64_t* end() { return begin() + size_; }
  const std::uint64_t* begin() const { return is_far() ? place_.far : place_.near; }
  const std::uint64_t* end() const { return begin() + size_; }
  std::uint64_t& operator[](std::size_t i) { return begin()[i]; }
  std::uint64_t operator[](std::size_t i) const { return begin()[i]; }
  std::uint64_t& front() { return *begin(); }
  std::uint64_t front() const { return *begin(); }
  std::uint64_t& back() { return end()[-1]; }
  std::uint64_t back() const { return end()[-1]; }

  /// Returns the dims from `first` on.
  Dims from(std::size_t first) const {
    Dims rest;
    rest.assign(begin() + first, end());
    return rest;
  }

  void clear() { size_ = 0; }
  void push_back(std::uint64_t value) { resize(size_ + std::size_t{1}, value); }
  /// New numbers are set to `value`.
  void resize(std::size_t size, std::uint64_t value = 0) {
    reserve(size);
    if (size > size_) std::fill(begin() + size_, begin() + size, value);
    size_ = static_cast<std::uint32_t>(size);
  }
  void reserve(std::size_t size) {
    if (size <= capacity_) return;
    const std::size_t capacity = std::max<std::size_t>(size, std::size_t{2} * capacity_);
    std::uint64_t* const far = std::allocator<std::uint64_t>().allocate(capacity);
    std::copy(begin(), end(), far);
    if (is_far()) std::allocator<std::uint64_t>().deallocate(place_.far, capacity_);
    place_.far = far;
    capacity_ = static_cast<std::uint32_t>(capacity);
  }

  friend bool operator==(const Dims& a, const Dims& b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }
  friend std::strong_ordering operator<=>(const Dims& a, const Dims& b) {
    return std::lexicographical_compare_three_way(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  static constexpr std::uint32_t kNear = 2;
  union Place {
    std::uint64_t near[kNear];
    std::uint64_t* far;
  };

  bool is_far() const { return capacity_ > kNear; }
  void assign(const std::uint64_t* first, const std::uint64_t* last) {
    reserve(static_cast<std::size_t>(last - first));
    std::copy(first, last, begin());
    size_ = static_cast<std::uint32_t>(last - first);
  }
  void swap(Dims& other) noexcept {
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    std::swap(place_, other.place_);
  }

  std::uint32_t size_ = 0;
  std::uint32_t capacity_ = kNear;
  Place place_{{0, 0}};
};

static_assert(sizeof(Dims) == 24);

}  // namespace reshard
