// How processes become a group: the Store first (liveness before anything else can hang), then
// what each says of itself, then the memory of each host, then the sockets between hosts. Each
// connection needs both ends: who has them all knows that all have joined.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include <stormo/base/version.h>
#include <stormo/comm/group/group.h>
#include <stormo/comm/job/epoch_store.h>
#include <stormo/comm/job/join_record.h>
#include <stormo/comm/job/joining.h>
#include <stormo/comm/job/refusal_lines.h>
#include <stormo/comm/job/store_connector.h>
#include <stormo/comm/operation/meeting.h>
#include <stormo/comm/watch/stacks.h>
#include <stormo/transport/memory/address_space.h>
#include <stormo/transport/net/socket.h>
#include <stormo/transport/shm/host_exchange.h>
#include <stormo/transport/store/store_of_rank.h>

namespace stormo::comm {
namespace {

using transport::Rendezvous;

/// Old builds, too, look for the version of rank 0 there.
std::string record_key(Rank rank) { return fmt::format("version/{}", rank); }

Result<RankProcess> posted_process(transport::StoreClient& store, Rank rank, Deadline by) {
  STORMO_ASSIGN_OR_RETURN(const std::string text, store.get(record_key(rank), by));
  STORMO_ASSIGN_OR_RETURN(JoinRecord record, parse_join_record(text));
  return std::move(record.process);
}

class Joining {
 public:
  Joining(std::unique_ptr<TicketExchange> tickets, Rendezvous r, Deadline by, std::string version)
      : tickets_(std::move(tickets)),
        r_(std::move(r)),
        version_(version.empty() ? fmt::format("{} (protocol {})", kVersion, kProtocolVersion)
                                 : std::move(version)),
        by_(by) {}

  Result<EpochGroup> run_in_epoch(Duration silence, std::shared_ptr<transport::Health> health) {
    store_silence_ = silence;
    health_ = std::move(health);
    STORMO_ASSIGN_OR_RETURN(auto group, run());
    return EpochGroup{std::move(group), job_watch_, health_};
  }

  Result<std::unique_ptr<Communicator>> run() {
    if (r_.local_size > 1) STORMO_RETURN_IF_ERROR(transport::check_file_limit());
    STORMO_ASSIGN_OR_RETURN(arena_,
                            transport::Arena::of_process(transport::arena_capacity(r_.local_size)));
    if (health_ == nullptr) health_ = std::make_shared<transport::Health>();
    activities_ = std::make_shared<Activities>();
    activities_->set_section("joining the group");
    if (r_.store.empty() && tickets_ == nullptr) return alone();
    STORMO_RETURN_IF_ERROR(reach_store());
    const Status joining = join_others();
    if (store_silence_ && health_->failed()) return health_->status();  // the others know
    const Status joined = name_who_is_absent(joining);
    if (!joined.ok()) return job_watch_->report(joined).within(identity() + " joining the group");
    group_->set_section("");
    return std::unique_ptr<Communicator>(std::move(group_));
  }

 private:
  std::string identity() const {
    return fmt::format("rank {} (host {}, pid {})", r_.rank, r_.host, getpid());
  }

  Result<std::unique_ptr<Communicator>> alone() {
    if (r_.size != 1) {
      return invalid_argument(
          fmt::format("{} ranks, but no address of the job's store: start them with "
                      "'stormo run', torchrun or srun",
                      r_.size));
    }
    Group::Parts parts;
    parts.ranks_per_host = {1};
    parts.host = r_.host;
    parts.health = health_;
    STORMO_ASSIGN_OR_RETURN(auto host, transport::lone_host(*arena_));
    parts.connections.host_group = std::make_unique<transport::HostGroup>(std::move(host), health_);
    return std::unique_ptr<Communicator>(std::make_unique<Group>(std::move(parts)));
  }

  Status reach_store() {
    if (r_.serve_store) {
      STORMO_RETURN_IF_ERROR(serve_store());
    } else if (tickets_ != nullptr) {
      STORMO_ASSIGN_OR_RETURN(const RendezvousTicket ticket, tickets_->receive(by_));
      r_.store = ticket.store;
      r_.secret = ticket.secret;
    }
    if (r_.secret.empty()) {
      return invalid_argument(
          "the job's store asks for the job's secret, and this rank has none (STORMO_SECRET_FD): "
          "start it with 'stormo run', and let wrapper programs leave that descriptor open");
    }
    auto client = open_session();
    if (!client.ok())
      return client.status().within(identity() + " reaching the job's store" + source_of_address());
    STORMO_ASSIGN_OR_RETURN(job_watch_,
                            JobWatch::start(std::move(client).value(), health_,
                                            {.rank = r_.rank,
                                             .size = r_.size,
                                             .identity = identity(),
                                             .heartbeat_timeout = r_.heartbeat_timeout,
                                             .on_stopped = r_.on_stopped,
                                             .activities = activities_,
                                             .stall_limits = {r_.stall_warning, r_.stall_timeout},
                                             .flight_file = r_.flight_file,
                                             .find_process = posted_process,
                                             .rank_0_serves = rank_0_serves()},
                                            by_));
    return {};
  }

  /// The job's Store, as it does where Stormo's launcher has not started the ranks. Those of a
  /// cluster know its address and secret without a ticket.
  bool rank_0_serves() const {
    return tickets_ != nullptr || r_.source == "tf_config" || store_silence_;
  }

  Result<std::unique_ptr<transport::StoreClient>> open_session() {
    const transport::StoreClient::Options options{
        .address = r_.store,
        .secret = r_.secret,
        .prefix = r_.epoch == 0 ? "" : prefix_of(r_.epoch)};
    if (!rank_0_serves()) return transport::StoreClient::connect(options, by_);
    if (store_silence_) return open_session_of_epoch(options);
    const bool waits = r_.serve_store || r_.on_stopped == transport::OnStopped::kWait;
    return transport::connect_to_rank(
        {.rank = 0, .silence = waits ? Duration::zero() : r_.heartbeat_timeout}, options, by_);
  }

  /// Rank 0 may be stopped: it is asked again and again, until somebody knows.
  Result<std::unique_ptr<transport::StoreClient>> open_session_of_epoch(
      const transport::StoreClient::Options& options) {
    constexpr Duration kAttempt = std::chrono::milliseconds(500);
    const transport::ServingRank server{
        .rank = 0, .silence = r_.rank == 0 ? Duration::zero() : *store_silence_};
    for (;;) {
      const Deadline attempt = Deadline::at(std::min(by_.when(), Deadline::after(kAttempt).when()));
      auto client = transport::connect_to_rank(server, options, attempt);
      if (client.status().code() != Code::kDeadlineExceeded || by_.expired()) return client;
      STORMO_RETURN_IF_ERROR(health_->status());
    }
  }

  /// For messages.
  std::string source_of_address() const {
    if (r_.serve_store || tickets_ == nullptr || tickets_->source().empty()) return {};
    return fmt::format(" at {}{}", r_.store.text, tickets_->source());
  }

  /// Rank 0 of a job that a foreign launcher started.
  Status serve_store() {
    transport::StoreServer::Options options{.listen = r_.store.text, .ports = r_.ports};
    if (r_.secret.empty()) r_.secret = transport::Secret::random();
    if (tickets_ != nullptr) {
      STORMO_ASSIGN_OR_RETURN(options.listen, tickets_->listen());
    }
    if (options.listen.empty()) {
      STORMO_ASSIGN_OR_RETURN(const std::string host, transport::interface_address(r_.interface));
      options.listen = "tcp:" + transport::to_string(transport::HostPort{host, 0});
    }
    options.secret = r_.secret;
    options.on_refused = say_refusals("store");
    STORMO_ASSIGN_OR_RETURN(server_, transport::StoreServer::start(std::move(options)));
    r_.store = server_->address();
    return tickets_ == nullptr ? Status() : tickets_->publish({r_.store, r_.secret});
  }

  Status join_others() {
    STORMO_RETURN_IF_ERROR(post_record());
    STORMO_RETURN_IF_ERROR(count_hosts());
    STORMO_RETURN_IF_ERROR(connect_members());
    if (r_.serve_store && tickets_ != nullptr) tickets_->end();
    parts_.rank = r_.rank;
    parts_.host = r_.host;
    parts_.health = health_;
    parts_.server = std::move(server_);
    parts_.job_watch = job_watch_;
    parts_.activities = activities_;
    group_ = std::make_unique<Group>(std::move(parts_));
    return {};
  }

  Status post_record() {
    mine_ = {.version = version_,
             .process = {identity(), getpid(), process_namespace()},
             .cross_rank = r_.cross_rank,
             .local_rank = r_.local_rank,
             .local_size = r_.local_size,
             .checksum = r_.checksum,
             .host_ticket = {},
             .selection = {}};
    if (r_.local_rank == 0 && r_.local_size > 1) {
      STORMO_ASSIGN_OR_RETURN(host_door_.listener, transport::HostListener::open());
      mine_.host_ticket = host_door_.listener->ticket();
    }
    if (r_.rank == 0 && !r_.selection_file.empty()) {
      STORMO_ASSIGN_OR_RETURN(const Selection selection, read_selection(r_.selection_file));
      mine_.selection = to_text(selection);
    }
    const std::string text = mine_.to_text();
    STORMO_ASSIGN_OR_RETURN(const std::string there,
                            store().set_if_absent(record_key(r_.rank), text, by_));
    if (there == text) return {};
    STORMO_ASSIGN_OR_RETURN(const JoinRecord owner, read_record(r_.rank, there));
    return invalid_argument(fmt::format("two processes claim to be rank {}: {} and {}", r_.rank,
                                        owner.process.identity, identity()));
  }

  Result<JoinRecord> record_of(Rank rank) {
    if (rank == r_.rank) return mine_;
    STORMO_ASSIGN_OR_RETURN(const auto text, value_of(store(), record_key(rank), by_,
                                                      [this] { return health_->status(); }));
    if (!text) return missing(rank);
    return read_record(rank, *text);
  }

  Result<JoinRecord> read_record(Rank rank, const std::string& text) const {
    const std::string version = version_in(text);
    if (version == version_) return parse_join_record(text);
    return Status(Code::kRefused,
                  fmt::format("rank {} runs stormo {}, rank {} (host {}) runs {}: install one "
                              "version on all hosts",
                              rank, version, r_.rank, r_.host, version_));
  }

  /// Everyone must choose alike: what rank 0 has counts.
  Status take_settings(const JoinRecord& of_rank_0) {
    r_.checksum = of_rank_0.checksum;
    if (of_rank_0.selection.empty()) return {};
    STORMO_ASSIGN_OR_RETURN(Selection selection, parse_selection(of_rank_0.selection));
    parts_.selection = std::make_shared<const Selection>(std::move(selection));
    return {};
  }

  /// Ranks must be numbered host by host; everyone learns how many each host has, from its first.
  Status count_hosts() {
    std::vector<int>& hosts = parts_.ranks_per_host;
    for (Rank r = 0; r < r_.size; r += hosts.back()) {
      STORMO_ASSIGN_OR_RETURN(const JoinRecord first, record_of(r));
      if (r == 0) STORMO_RETURN_IF_ERROR(take_settings(first));
      const bool in_order = first.cross_rank == static_cast<int>(hosts.size()) &&
                            first.local_rank == 0 && first.local_size >= 1 &&
                            r + first.local_size <= r_.size;
      if (!in_order) {
        return invalid_argument(
            fmt::format("rank {} says it is local rank {} of {} on host {}: ranks must "
                        "be numbered host by host",
                        r, first.local_rank, first.local_size, first.cross_rank));
      }
      if (first.cross_rank == r_.cross_rank) host_door_.ticket = first.host_ticket;
      hosts.push_back(first.local_size);
    }
    return {};
  }

  /// A wait that ended without success, also by the end of somebody else's: the first rank that
  /// has never been here is its cause, if there is one.
  Status name_who_is_absent(Status waited) {
    if (waited.code() != Code::kDeadlineExceeded && waited.code() != Code::kPeerLost) return waited;
    constexpr Duration kLook = std::chrono::milliseconds(200);
    for (Rank r = 0; r < r_.size; ++r) {
      const auto claimed = store().get(record_key(r), Deadline::after(kLook));
      if (claimed.status().code() == Code::kDeadlineExceeded) return missing(r);
      if (!claimed.ok()) return waited;
    }
    return waited;
  }

  Status missing(Rank r) const {
    return {Code::kDeadlineExceeded,
            fmt::format("rank {} of {} has not joined within {} s; did it start?", r, r_.size,
                        std::chrono::duration_cast<std::chrono::seconds>(r_.join_timeout).count())};
  }

  Status connect_members() {
    const auto connector = std::make_shared<StoreConnector>(job_watch_, r_, *arena_, health_);
    parts_.connector = connector;
    const Membership world{.name = "world",
                           .rank = r_.rank,
                           .ranks_per_host = parts_.ranks_per_host,
                           .cross_rank = r_.cross_rank,
                           .local_rank = r_.local_rank};
    STORMO_ASSIGN_OR_RETURN(parts_.connections,
                            connector->connect(world, std::move(host_door_), by_));
    return {};
  }

  transport::StoreClient& store() { return job_watch_->store(); }

  const std::unique_ptr<TicketExchange> tickets_;
  Rendezvous r_;
  const std::string version_;
  const Deadline by_;
  transport::Arena* arena_ = nullptr;
  std::shared_ptr<transport::Health> health_;  // null: made here
  std::optional<Duration> store_silence_;      // of an EpochGroup
  /// The job watch, which tells of them, starts before the group and may outlive it.
  std::shared_ptr<Activities> activities_;
  JoinRecord mine_;
  StoreConnector::HostDoor host_door_;
  std::unique_ptr<transport::StoreServer> server_;
  std::shared_ptr<JobWatch> job_watch_;
  Group::Parts parts_;
  std::unique_ptr<Group> group_;
};

}  // namespace

Result<std::unique_ptr<Communicator>> join_through(std::unique_ptr<TicketExchange> tickets,
                                                   const transport::Rendezvous& r, Deadline by,
                                                   std::string version) {
  return Joining(std::move(tickets), r, by, std::move(version)).run();
}

Result<std::unique_ptr<Communicator>> join(const transport::Rendezvous& r, std::string version) {
  return join_through(exchange_of(r), r, Deadline::after(r.join_timeout), std::move(version));
}

Result<EpochGroup> join_epoch(const transport::Rendezvous& r, Duration silence,
                              std::shared_ptr<transport::Health> health) {
  return Joining(nullptr, r, Deadline::after(r.join_timeout), {})
      .run_in_epoch(silence, std::move(health));
}

}  // namespace stormo::comm
