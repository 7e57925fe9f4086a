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

/// Between two looks of who waits: they become longer. Nobody uses the store's wait(), whose
/// timeout would have to be short because of interrupts: TCPStore warns of each that has passed.
struct Pauses {
  Duration first, longest;
};
constexpr Pauses kOfFiles = {std::chrono::microseconds(500), std::chrono::milliseconds(10)};
constexpr Pauses kOfServers = {std::chrono::microseconds(100), std::chrono::milliseconds(100)};

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
  const Pauses pauses = is_of_files_ ? kOfFiles : kOfServers;
  Deadline look = Deadline::after(kInterruptLook);
  for (Duration pause = pauses.first;; pause = std::min(pauses.longest, pause * 9 / 8)) {
    try {
      if (store_->check(keys)) return values_of(keys);
    } catch (const std::exception& e) {
      return failed(keys.front(), e);
    }
    if (look.expired() || by.expired()) {
      try {
        check_interrupt();
      } catch (...) {
        interrupt_ = std::current_exception();
        return Status(Code::kInterrupted, "the program was interrupted (Ctrl-C)");
      }
      look = Deadline::after(kInterruptLook);
    }
    if (by.expired()) {
      return Status(Code::kDeadlineExceeded, "PyTorch's store has no value of " + keys.front());
    }
    std::this_thread::sleep_for(std::min(pause, by.remaining()));
  }
}

void StoreBulletin::rethrow_interrupt() const {
  if (interrupt_) std::rethrow_exception(interrupt_);
}

}  // namespace stormo::c10d
