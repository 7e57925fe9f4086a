#include <fmt/format.h>
#include <stormo/base/wait_until.h>
#include <stormo/transport/store/store_keeper.h>

#include <algorithm>
#include <cstdio>
#include <system_error>
#include <thread>
#include <utility>

namespace stormo::transport {

namespace {

/// How often the end of a process looks for signals.
constexpr Duration kLook = std::chrono::milliseconds(200);

}  // namespace

StoreKeeper& StoreKeeper::of_process() {
  static StoreKeeper keeper(
      {.say = [](std::string_view line) { fmt::print(stderr, "stormo: {}\n", line); }});
  return keeper;
}

bool StoreKeeper::wait(Deadline by) {
  std::unique_lock lock(state_->mutex);
  const auto waited_for = state_->kept;
  return wait_until(state_->changed, lock, by, [&] {
    return std::ranges::all_of(
        waited_for, [](const auto& kept) { return kept->is_deserted || !kept->process.is_here(); });
  });
}

void StoreKeeper::wait_at_end(const std::function<void()>& look) {
  const Deadline by = Deadline::after(options_.at_most);
  const auto wait_and_look = [&](Deadline until) {
    while (!wait(Deadline::at(std::min(until.when(), Deadline::after(kLook).when())))) {
      if (until.expired()) return false;
      if (look) look();
    }
    return true;
  };
  if (wait_and_look(Deadline::after(std::min(options_.say_after, options_.at_most)))) return;
  {
    const std::lock_guard lock(state_->mutex);
    const auto waits = std::ranges::find_if(
        state_->kept, [](const auto& kept) { return kept->server && kept->process.is_here(); });
    if (waits == state_->kept.end()) return;
    options_.say(fmt::format(
        "this process has left its job, and stays at most {} s for the ranks that have not: "
        "they need the job's store, which it serves at {}",
        std::chrono::duration_cast<std::chrono::seconds>(by.remaining()).count(),
        (*waits)->server->address().text));
  }
  wait_and_look(by);
}

StoreKeeper::~StoreKeeper() {
  wait_at_end();
  // a forked child has neither the threads nor the clients of its parent's servers
  static auto* const of_parents = new std::vector<std::shared_ptr<Kept>>;
  std::vector<std::shared_ptr<Kept>> closing;  // without the lock
  const std::lock_guard lock(state_->mutex);
  for (auto& kept : state_->kept) {
    (kept->process.is_here() ? closing : *of_parents).push_back(std::move(kept));
  }
  state_->kept.clear();
}

/// In a thread of its own: the server's cannot wait for its own end.
void StoreKeeper::close(State& state, const std::shared_ptr<Kept>& deserted) {
  std::unique_ptr<StoreServer> server;
  {
    const std::lock_guard lock(state.mutex);
    server = std::move(deserted->server);
  }
  server.reset();
  const std::lock_guard lock(state.mutex);
  deserted->is_deserted = true;
  std::erase(state.kept, deserted);
  state.changed.notify_all();
}

void StoreKeeper::keep(std::unique_ptr<StoreServer> server) {
  const auto kept = std::make_shared<Kept>(std::move(server));
  const auto close_soon = [state = state_, deserted = std::weak_ptr(kept)] {
    const auto one = deserted.lock();
    if (!one) return;
    try {
      std::thread([state, one] { close(*state, one); }).detach();
    } catch (const std::system_error&) {  // no thread is left: it stays until the end
      const std::lock_guard lock(state->mutex);
      one->is_deserted = true;
      state->changed.notify_all();
    }
  };
  const std::lock_guard lock(state_->mutex);  // nobody closes it before this call has ended
  state_->kept.push_back(kept);
  kept->server->when_deserted(close_soon);
}

}  // namespace stormo::transport
