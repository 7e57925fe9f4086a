#include <stormo/mpi/meeting_place.h>

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include <stormo/comm/operation/meeting.h>
#include <stormo/transport/net/socket.h>

namespace stormo::mpi {
namespace {

constexpr std::string_view kTurn = "turn";  // its value: whose turn it is
constexpr std::string_view kNow = "now";
constexpr int kMaxText = 512;
constexpr Duration kReach = std::chrono::seconds(5);
constexpr Duration kCall = std::chrono::seconds(10);
constexpr Duration kTryAgain = std::chrono::microseconds(500);

std::string turn_key(const std::string& id) { return "turn of " + id; }

}  // namespace

/// On rank 0.
Status MeetingPlace::serve(const Where& where) {
  std::string address = "0.0.0.0";
  if (!where.interface.empty()) {
    STORMO_ASSIGN_OR_RETURN(address, transport::interface_address(where.interface));
  }
  transport::StoreServer::Options options;
  if (!where.one_host) options.listen = "tcp:" + address;
  options.secret = secret_ = transport::Secret::random();
  STORMO_ASSIGN_OR_RETURN(server_, transport::StoreServer::start(std::move(options)));
  address_ = server_->address();
  if (!where.one_host && where.interface.empty()) {  // the others know what address its name has
    address_.text = "tcp:" + where.host + address_.text.substr(address_.text.rfind(':'));
  }
  return {};
}

/// `said`: by rank 0, its secret and address, or why it has none.
Status MeetingPlace::reach(const std::string& said) {
  const std::size_t space = said.find(' ');
  if (said.starts_with('-')) return {Code::kIo, said.substr(space + 1)};
  STORMO_ASSIGN_OR_RETURN(const auto secret, transport::Secret::from_hex(said.substr(0, space)));
  STORMO_ASSIGN_OR_RETURN(
      client_,
      transport::StoreClient::connect({{said.substr(space + 1)}, secret}, Deadline::after(kReach)));
  return {};
}

Result<std::shared_ptr<MeetingPlace>> MeetingPlace::open(Link& world, const Where& where) {
  auto place = std::make_shared<MeetingPlace>();
  const auto tell = [&](std::string said, Rank from) -> Result<std::string> {
    said.resize(kMaxText);
    STORMO_RETURN_IF_ERROR(world.library().call("MPI_Bcast", [&] {
      return MPI_Bcast(said.data(), kMaxText, MPI_CHAR, from, world.messages());
    }));
    return std::string(said.c_str());
  };
  const Status serves = world.rank() == 0 ? place->serve(where) : Status();
  STORMO_ASSIGN_OR_RETURN(const std::string said,
                          tell(serves.ok() ? place->secret_.to_hex() + " " + place->address_.text
                                           : "- " + serves.message(),
                               0));
  const Status mine = place->reach(said);
  int first = mine.ok() ? world.size() : world.rank();  // of those that do not reach it
  STORMO_RETURN_IF_ERROR(world.library().call("MPI_Allreduce", [&] {
    return MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_INT, MPI_MIN, world.messages());
  }));
  if (first == world.size()) return place;
  STORMO_ASSIGN_OR_RETURN(const std::string why, tell(mine.message(), first));
  place->client_.reset();
  place->server_.reset();
  place->status_ = {Code::kIo,
                    fmt::format("rank {} does not reach the Store of rank 0, in which members of "
                                "groups meet: {}; set STORMO_INTERFACE to a network interface of "
                                "rank 0's host that all hosts reach, or use subgroup",
                                first, why)};
  return place;
}

Status Turn::wait(const std::function<Status()>& job) {
  if (!is_founder_) {
    return comm::value_of(values_, turn_key(id_), Deadline::never(), job).status();
  }
  for (;;) {
    STORMO_ASSIGN_OR_RETURN(const std::string whose,
                            values_.set_if_absent(kTurn, id_, Deadline::after(kCall)));
    STORMO_RETURN_IF_ERROR(job());
    if (whose == id_) break;
    std::this_thread::sleep_for(kTryAgain);
  }
  return values_.set_if_absent(turn_key(id_), kNow, Deadline::after(kCall)).status();
}

void Turn::end() {
  if (!is_founder_) return;  // when it has the group, all have read that it was their turn
  static_cast<void>(values_.erase_if(turn_key(id_), kNow, Deadline::after(kCall)));
  static_cast<void>(values_.erase_if(kTurn, id_, Deadline::after(kCall)));
}

}  // namespace stormo::mpi
