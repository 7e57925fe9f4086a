#include <stormo/comm/job/epoch_store.h>

#include <charconv>
#include <chrono>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace stormo::comm {
namespace {

constexpr std::string_view kEpoch = "epoch ";
constexpr Duration kForgetting = std::chrono::seconds(1);

}  // namespace

std::string prefix_of(Epoch number) { return fmt::format("{}{}/", kEpoch, number); }

Result<std::unique_ptr<EpochStore>> EpochStore::start(transport::StoreServer::Options options) {
  std::unique_ptr<EpochStore> store(new EpochStore(options.secret));
  options.on_set = [owner = store.get()](std::string_view key, std::string_view) {
    owner->note(key);
  };
  STORMO_ASSIGN_OR_RETURN(store->server_, transport::StoreServer::start(std::move(options)));
  return store;
}

void EpochStore::note(std::string_view key) {
  if (!key.starts_with(kEpoch)) return;
  Epoch number = 0;
  std::from_chars(key.data() + kEpoch.size(), key.data() + key.size(), number);
  const std::lock_guard lock(mutex_);
  keys_[number].emplace(key);
}

void EpochStore::forget(const std::function<bool(Epoch)>& is_over) {
  std::vector<std::pair<Epoch, std::string>> keys;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, of_group] : keys_) {
      if (!is_over(number)) continue;
      for (const std::string& key : of_group) keys.emplace_back(number, key);
    }
  }
  if (keys.empty()) return;
  const Deadline by = Deadline::after(kForgetting);
  const auto client =
      transport::StoreClient::connect({.address = address(), .secret = secret_}, by);
  if (!client.ok()) return;
  for (const auto& [number, key] : keys) {
    if (!(*client)->erase(key, by).ok()) break;
    const std::lock_guard lock(mutex_);
    keys_[number].erase(key);
  }
  static_cast<void>((*client)->goodbye(by));
  const std::lock_guard lock(mutex_);
  std::erase_if(keys_, [](const auto& entry) { return entry.second.empty(); });
}

}  // namespace stormo::comm
