#include <stormo/membership/elastic_driver.h>

#include <fmt/format.h>
#include <stormo/base/wait_until.h>
#include <stormo/membership/elastic_record.h>
#include <stormo/membership/member_address.h>
#include <stormo/membership/member_links.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace stormo::membership {
namespace {

using protocol::ElasticAction;
using protocol::ElasticRecord;

/// For one question to the register. Its members are near, or lost.
constexpr Duration kRegisterTime = std::chrono::seconds(1);

TimePoint now() { return std::chrono::steady_clock::now(); }

/// Members, each with the address of its links alone.
std::vector<protocol::ElasticEntry> reached_by_links(std::vector<protocol::ElasticEntry> members) {
  for (protocol::ElasticEntry& m : members) m.address = parse_member_address(m.address).links;
  return members;
}

/// A thread that does one thing after the other.
class Chores {
 public:
  Chores() : thread_([this] { run(); }) {}
  ~Chores() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  Chores(const Chores&) = delete;
  Chores& operator=(const Chores&) = delete;

  void add(std::function<void()> chore) {
    {
      const std::lock_guard lock(mutex_);
      todo_.push_back(std::move(chore));
    }
    changed_.notify_one();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stop_ || !todo_.empty(); });
      if (stop_) return;
      const std::function<void()> chore = std::move(todo_.front());
      todo_.pop_front();
      lock.unlock();
      chore();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> todo_;
  bool stop_ = false;
  std::thread thread_;
};

class ThreadedDriver final : public ElasticDriver {
 public:
  explicit ThreadedDriver(Options options) : options_(std::move(options)) {}
  Status open();

  std::string address() const override {
    return to_text({transport::to_string(links_->address()), options_.store});
  }
  Status write_first(const ElasticRecord& record, Deadline by) override;
  void begin(protocol::ElasticOptions options) override;
  void tell(const protocol::ElasticInput& input) override;
  std::optional<Order> next(Deadline by) override;
  void unread(Order order) override;
  void note_progress(bool waits) override {
    waits_.store(waits, std::memory_order_relaxed);
    progress_.fetch_add(1, std::memory_order_relaxed);
  }
  Duration silence() const override { return now() - heard_.load(); }
  ElasticRecord record() const override {
    const std::lock_guard lock(mutex_);
    return member_ ? member_->record() : ElasticRecord{};
  }

 private:
  TimePoint tick(TimePoint at);
  void handle(const protocol::ElasticInput& input, TimePoint at);
  void follow(ElasticAction& action);
  void order(ElasticAction& action);
  void ask_register(std::optional<ElasticRecord> next);

  Options options_;
  mutable std::mutex mutex_;
  std::condition_variable ordered_;
  std::optional<protocol::ElasticMember> member_;  // guarded by mutex_, as what follows
  std::deque<Order> orders_;
  Epoch linked_ = 0;  // whose members the links know
  std::atomic<std::uint64_t> progress_ = 0;
  std::atomic<bool> waits_ = false;
  std::atomic<TimePoint> heard_ = now();
  std::uint64_t told_progress_ = 0;  // thread of the links
  std::unique_ptr<MemberLinks> links_;
  // Last: they end first.
  std::optional<Chores> register_, aborts_;
};

Status ThreadedDriver::open() {
  register_.emplace();
  aborts_.emplace();
  MemberLinks::Options links{.me = options_.me,
                             .address = options_.listen,
                             .ports = options_.ports,
                             .secret = options_.secret};
  links.on_message = [this](const protocol::ElasticMessage& m) {
    heard_ = now();
    tell(protocol::ElasticHeard{m});
  };
  links.on_ended = [this](const protocol::MemberId& id) { tell(protocol::ProcessEnded{id}); };
  links.on_tick = [this](TimePoint at) { return tick(at); };
  links.on_event = options_.say;
  STORMO_ASSIGN_OR_RETURN(links_, MemberLinks::start(std::move(links)));
  return {};
}

Status ThreadedDriver::write_first(const ElasticRecord& record, Deadline by) {
  STORMO_ASSIGN_OR_RETURN(
      const Register::Swap swap,
      options_.membership->compare_and_swap(epoch_record_of(record, options_.job), by));
  if (swap.done) return {};
  return invalid_argument(fmt::format("the register has a record of job {} already, of epoch {}",
                                      options_.job, swap.present.epoch));
}

void ThreadedDriver::begin(protocol::ElasticOptions options) {
  options.address = address();
  {
    const std::lock_guard lock(mutex_);
    member_.emplace(std::move(options));
  }
  tell(protocol::ElasticTick{});
  links_->wake();
}

void ThreadedDriver::tell(const protocol::ElasticInput& input) {
  const std::lock_guard lock(mutex_);
  handle(input, now());
}

// With the lock.
void ThreadedDriver::handle(const protocol::ElasticInput& input, TimePoint at) {
  if (!member_) return;
  const TimePoint wakes = member_->wakes_at();
  std::vector<ElasticAction> actions = member_->handle(input, at);
  const ElasticRecord& record = member_->record();
  if (record.epoch != linked_) {
    linked_ = record.epoch;
    links_->set_peers(reached_by_links(record.members));
  }
  for (ElasticAction& action : actions) follow(action);
  if (member_->wakes_at() < wakes) links_->wake();
}

// With the lock.
void ThreadedDriver::follow(ElasticAction& action) {
  if (const auto* message = std::get_if<protocol::SendMessage>(&action)) {
    links_->send(message->to, message->message);
  } else if (const auto* abort = std::get_if<protocol::AbortPart>(&action)) {
    aborts_->add([this, epoch = abort->epoch] { options_.abort(epoch); });
  } else if (std::holds_alternative<protocol::ReadRegister>(action)) {
    ask_register({});
  } else if (auto* swap = std::get_if<protocol::SwapRecord>(&action)) {
    ask_register(std::move(swap->next));
  } else if (const auto* prepare = std::get_if<protocol::PrepareGroup>(&action)) {
    options_.prepare(prepare->wish);
  } else if (const auto* pause = std::get_if<protocol::PauseMember>(&action)) {
    options_.say("waits: " + pause->why);
    order(action);
  } else if (std::holds_alternative<protocol::ResumeMember>(action)) {
    options_.say("goes on");
  } else if (const auto* end = std::get_if<protocol::EndProcess>(&action)) {
    options_.say(end->why);
    options_.end_process();
  } else {
    order(action);
  }
}

// With the lock.
void ThreadedDriver::order(ElasticAction& action) {
  std::visit(
      [this](auto& it) {
        if constexpr (std::is_constructible_v<Order, decltype(std::move(it))>) {
          orders_.emplace_back(std::move(it));
          ordered_.notify_one();
        }
      },
      action);
}

// What is not known after a failed swap is read again by the member.
void ThreadedDriver::ask_register(std::optional<ElasticRecord> next) {
  register_->add([this, next = std::move(next)] {
    const Deadline by = Deadline::after(kRegisterTime);
    protocol::RegisterAnswer answer;
    if (next) {
      const Result<Register::Swap> swap =
          options_.membership->compare_and_swap(epoch_record_of(*next, options_.job), by);
      if (swap.ok()) answer.present = elastic_record_of(swap->present);
    } else {
      const Result<EpochRecord> present = options_.membership->read(by);
      if (present.ok()) answer.present = elastic_record_of(*present);
    }
    tell(answer);
  });
}

// On the thread of the links.
TimePoint ThreadedDriver::tick(TimePoint at) {
  const std::lock_guard lock(mutex_);
  if (!member_) return TimePoint::max();
  const std::uint64_t progress = progress_.load(std::memory_order_relaxed);
  if (std::exchange(told_progress_, progress) != progress) {
    handle(protocol::MainThread{.is_waiting = waits_.load(std::memory_order_relaxed)}, at);
  }
  if (member_->wakes_at() <= at) handle(protocol::ElasticTick{}, at);
  return member_->wakes_at();
}

std::optional<ElasticDriver::Order> ThreadedDriver::next(Deadline by) {
  std::unique_lock lock(mutex_);
  const auto has_one = [this] { return !orders_.empty(); };
  if (!wait_until(ordered_, lock, by, has_one)) return {};
  Order order = std::move(orders_.front());
  orders_.pop_front();
  return order;
}

void ThreadedDriver::unread(Order order) {
  const std::lock_guard lock(mutex_);
  orders_.push_front(std::move(order));
}

}  // namespace

Result<std::unique_ptr<ElasticDriver>> ElasticDriver::open(Options options) {
  auto driver = std::make_unique<ThreadedDriver>(std::move(options));
  STORMO_RETURN_IF_ERROR(driver->open());
  return std::unique_ptr<ElasticDriver>(std::move(driver));
}

}  // namespace stormo::membership
