#include "allocation_peak.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> live{0}, peak{0};

void* allocate(std::size_t bytes) {
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) return nullptr;
  const std::size_t now = live += ::malloc_usable_size(memory);
  std::size_t seen = peak;
  while (now > seen && !peak.compare_exchange_weak(seen, now)) {
  }
  return memory;
}

void release(void* memory) {
  if (memory != nullptr) live -= ::malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

// What this program's containers use; arrays and sizes come through these.
void* operator new(std::size_t bytes) {
  void* const memory = allocate(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }

namespace stormo::test {

AllocationPeak::AllocationPeak() : before_(live) { peak = before_; }
std::size_t AllocationPeak::bytes() const { return peak - before_; }

}  // namespace stormo::test
