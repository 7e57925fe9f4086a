#include <stormo/c10d/store_bulletin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <stormo/c10d/work.h>

namespace stormo::c10d {
namespace {

/// A store takes its timeout in milliseconds, and 0 means none.
std::chrono::milliseconds timeout_of(Deadline by) {
  constexpr std::chrono::milliseconds kLeast(1), kMost = std::chrono::hours(24 * 365);
  const Duration left = std::min<Duration>(by.remaining(), kMost);
  return std::max(kLeast, std::chrono::ceil<std::chrono::milliseconds>(left));
}

/// FileStore looks every 10 ms, which is more than what a world needs besides.
bool is_of_files(const c10::intrusive_ptr<::c10d::Store>& store) {
  auto* const prefixed = dynamic_cast<::c10d::PrefixStore*>(store.get());
  const auto own = prefixed == nullptr ? store : prefixed->getUnderlyingNonPrefixStore();
  return dynamic_cast<::c10d::FileStore*>(own.get()) != nullptr;
}

Status failed(const std::string& key, const std::exception& e) {
  const auto* const error = dynamic_cast<const c10::Error*>(&e);
  return {Code::kPeerLost, "PyTorch's store, key " + key + ": " +
                               (error != nullptr ? error->what_without_backtrace() : e.what())};
}

}  // namespace

StoreBulletin::StoreBulletin(c10::intrusive_ptr<::c10d::Store> store)
    : store_(std::move(store)), is_of_files_(is_of_files(store_)) {}

Status StoreBulletin::set(const std::string& key, const std::string& value) {
  try {
    store_->set(key, value);
    return {};
  } catch (const std::exception& e) {
    return failed(key, e);
  }
}

/// Throws or returns false when one of them does not.
bool StoreBulletin::come(const std::vector<std::string>& keys, Deadline by) {
  if (!is_of_files_) {
    store_->wait(keys, timeout_of(by));
    return true;
  }
  constexpr Duration kLeast = std::chrono::microseconds(500), kMost = std::chrono::milliseconds(10);
  for (Duration pause = kLeast; !store_->check(keys); pause = std::min(kMost, pause * 9 / 8)) {
    if (by.expired()) return false;
    std::this_thread::sleep_for(pause);
  }
  return true;
}

/// Of keys that have values: many at once, where the store can.
std::vector<std::string> StoreBulletin::values_of(const std::vector<std::string>& keys) {
  std::vector<std::string> values;
  if (keys.size() > 1 && store_->hasExtendedApi()) {
    for (const std::vector<std::uint8_t>& value : store_->multiGet(keys)) {
      values.emplace_back(value.begin(), value.end());
    }
  } else {
    for (const std::string& key : keys) values.push_back(store_->get_to_str(key));
  }
  return values;
}

Result<std::string> StoreBulletin::get(const std::string& key, Deadline by) {
  STORMO_ASSIGN_OR_RETURN(std::vector<std::string> values, get_all({key}, by));
  return std::move(values.front());
}

Result<std::vector<std::string>> StoreBulletin::get_all(const std::vector<std::string>& keys,
                                                        Deadline by) {
  for (;;) {
    const Deadline slice =
        Deadline::at(std::min(by.when(), Deadline::after(kInterruptLook).when()));
    try {
      if (come(keys, slice)) return values_of(keys);
    } catch (const std::exception& e) {
      if (!slice.expired()) return failed(keys.front(), e);
    }
    try {
      check_interrupt();
    } catch (...) {
      interrupt_ = std::current_exception();
      return Status(Code::kInterrupted, "the program was interrupted (Ctrl-C)");
    }
    if (by.expired()) {
      return Status(Code::kDeadlineExceeded, "PyTorch's store has no value of " + keys.front());
    }
  }
}

void StoreBulletin::rethrow_interrupt() const {
  if (interrupt_) std::rethrow_exception(interrupt_);
}

}  // namespace stormo::c10d
