// What a rank believes of what others write into the store of another program.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <stormo/base/temporary_folder.h>
#include <stormo/comm/job/claims.h>
#include <stormo/comm/job/host_socket.h>
#include <stormo/comm/job/join_by_bulletin.h>
#include <stormo/transport/net/socket.h>

namespace stormo::comm {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
namespace fs = std::filesystem;

class HostSockets : public ::testing::Test {
 protected:
  std::unique_ptr<HostSocket> open() const {
    return HostSocket::open({folder_.string()}).take_or_throw();
  }
  const TemporaryFolder temporary_ = TemporaryFolder::create("bulletin-test").take_or_throw();
  const fs::path folder_ = temporary_.path() / "mine";
};

TEST_F(HostSockets, KnowWhoHasConnected) {
  auto socket = open();
  EXPECT_TRUE(socket->connected()->empty());
  const auto first = connect_to_host_socket(socket->path());
  const auto second = connect_to_host_socket(socket->path());
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  EXPECT_EQ(socket->connected()->size(), 2u);
  EXPECT_TRUE(socket->connected()->empty());
  const std::string path = socket->path();
  socket.reset();
  EXPECT_FALSE(fs::exists(path));
  EXPECT_FALSE(connect_to_host_socket(path).ok());
}

TEST_F(HostSockets, AreNotSoughtWhereOthersMayBe) {
  const auto socket = open();
  fs::permissions(folder_, fs::perms(0711));
  EXPECT_EQ(connect_to_host_socket(socket->path()).status().code(), Code::kRefused);
  fs::permissions(folder_, fs::perms(0700));
  const fs::path link = temporary_.path() / "link";
  fs::create_directory_symlink(folder_, link);
  const auto linked = connect_to_host_socket(link / fs::path(socket->path()).filename());
  EXPECT_FALSE(linked.ok());
  EXPECT_TRUE(socket->connected()->empty()) << "nothing has been connected";
}

TEST_F(HostSockets, AreNotTheSocketsOfOtherPrograms) {
  const auto socket = open();
  const std::string other = folder_ / "bus";
  const auto listener = transport::listen_unix(other);
  ASSERT_TRUE(listener.ok());
  EXPECT_EQ(connect_to_host_socket(other).status().code(), Code::kRefused);
  transport::SocketAddress peer;
  EXPECT_FALSE(transport::accept_from(listener->get(), &peer)->valid());
  EXPECT_FALSE(connect_to_host_socket("world.relative").ok());
  EXPECT_FALSE(connect_to_host_socket("").ok());
}

TEST_F(HostSockets, OfAnotherUserProveNothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "root: another user's process needs root";
  const auto own = open();
  const std::string path = folder_ / "world.other";
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto address = transport::unix_address(path);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    const bool listens =
        ::bind(fd, reinterpret_cast<const sockaddr*>(&address->storage), address->length) == 0 &&
        ::setuid(65534) == 0 && ::listen(fd, 1) == 0 && ::write(ready[1], "x", 1) == 1;
    ::close(ready[1]);
    if (listens) ::pause();
    ::_exit(1);
  }
  ::close(ready[1]);
  char x = 0;
  const ssize_t n = ::read(ready[0], &x, 1);
  ::close(ready[0]);
  const auto reached = connect_to_host_socket(path);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ASSERT_EQ(n, 1);
  EXPECT_EQ(reached.status().code(), Code::kRefused);
  EXPECT_THAT(reached.status().message(), HasSubstr("belongs to user 65534"));
}

TEST_F(HostSockets, OfKilledRanksAreRemoved) {
  const auto own = open();
  const fs::path killed = folder_ / "world.killed", fresh = folder_ / "world.fresh";
  for (const fs::path& path : {killed, fresh}) {
    ASSERT_TRUE(transport::listen_unix(path.string()).ok());  // closed at once: nobody listens
  }
  const auto make_old = [](const fs::path& path) {
    const timespec times[] = {{std::time(nullptr) - 120, 0}, {std::time(nullptr) - 120, 0}};
    EXPECT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW), 0);
  };
  make_old(killed);
  make_old(own->path());
  const auto next = open();
  EXPECT_FALSE(fs::exists(killed));
  EXPECT_TRUE(fs::exists(fresh)) << "its owner may be about to listen";
  EXPECT_TRUE(fs::exists(own->path())) << "its owner waits for long";
}

TEST(Claims, AreReadBackAndCompared) {
  transport::JobSettings settings;
  settings.host = "node\n1";
  settings.trust_store = true;
  const Claims mine = Claims::own(settings, "/run/world.1");
  EXPECT_EQ(mine.secret_by, kByTrust);
  const auto back = parse_claims(mine.to_text() + mine.to_text(), 2);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back->front(), mine);
  EXPECT_EQ(back->back(), mine);
  EXPECT_EQ(parse_claims(mine.to_text(), 2).status().code(), Code::kCorrupt);
  EXPECT_EQ(parse_claims("", 1).status().code(), Code::kCorrupt);
  Claims other = mine;
  EXPECT_EQ(difference(mine, other), "");
  other.network = other.mounts = "1";
  EXPECT_EQ(difference(mine, other), "their mount namespaces and network namespaces differ");
  other.kernel = "1";
  EXPECT_EQ(difference(mine, other), "they run under different kernels");
}

/// What somebody else has written, whatever this rank writes.
class Written final : public Bulletin {
 public:
  explicit Written(std::map<std::string, std::string> values) : values_(std::move(values)) {}
  Status set(const std::string&, const std::string&) override { return {}; }
  Result<std::string> get(const std::string& key, Deadline) override {
    if (values_.contains(key)) return values_.at(key);
    return Status(Code::kDeadlineExceeded, "no " + key);
  }

 private:
  const std::map<std::string, std::string> values_;
};

class Strangers : public HostSockets {
 protected:
  Status join_with(Bulletin& bulletin) const {
    WorldOptions options;
    options.rank = 1;
    options.size = 2;
    options.host_rendezvous_folders = {folder_.string()};
    options.join_timeout = std::chrono::seconds(1);
    return join(bulletin, options).status();
  }
};

TEST_F(Strangers, WhoWriteRubbishPreventTheWorldAndNothingElse) {
  const std::string rank_0 = Claims::own({}, "/nowhere/world.0").to_text();
  for (const std::string said :
       {"", "rubbish", "yes", "yes\n", "yes\n1\n2\n", "no\n", "no\n\x1b[2J"}) {
    for (const auto& values : {std::map<std::string, std::string>{{"claims/0", said}},
                               {{"claims/0", rank_0}, {"claims/all", said}}}) {
      Written bulletin(values);
      const Status status = join_with(bulletin);
      EXPECT_FALSE(status.ok()) << said;
      EXPECT_EQ(status.message().find('\x1b'), std::string::npos);
    }
  }
}

TEST_F(Strangers, WhoPassForRankZeroHearNoMoreThanWhereThisRankListens) {
  const auto socket = open();
  Written bulletin({{"claims/0", Claims::own({}, socket->path()).to_text()}});
  auto joined = std::async(std::launch::async, [&] { return join_with(bulletin); });
  std::vector<Descriptor> callers;
  while (callers.empty()) {
    ::poll(nullptr, 0, 1);
    callers = socket->connected().take_or_throw();
  }
  std::array<char, 1024> heard{};
  const ssize_t n = ::recv(callers.front().get(), heard.data(), heard.size(), 0);
  EXPECT_THAT(std::string(heard.data(), static_cast<std::size_t>(std::max<ssize_t>(n, 0))),
              StartsWith((folder_ / "world.").string()));
  EXPECT_EQ(::send(callers.front().get(), "rubbish", 7, MSG_NOSIGNAL), 7);
  callers.clear();
  EXPECT_THAT(joined.get().message(), HasSubstr("what rank 0 has sent"));
}

/// What rank 0 says of itself, this rank's own claims if empty, and an outcome.
class Forged final : public Bulletin {
 public:
  explicit Forged(std::string outcome, std::string rank_0 = {})
      : outcome_(std::move(outcome)), rank_0_(std::move(rank_0)) {}
  Status set(const std::string& key, const std::string& value) override {
    if (key == "claims/1") claims_ = value;
    return {};
  }
  Result<std::string> get(const std::string& key, Deadline) override {
    asked_ += key + " ";
    if (key == "claims/0") {
      return rank_0_.empty() ? Claims::own({}, "/nowhere/world.0").to_text() : rank_0_;
    }
    if (key == "claims/all") return "yes\n" + (rank_0_.empty() ? claims_ : rank_0_) + claims_;
    if (key == "host/all") return outcome_;
    return Status(Code::kDeadlineExceeded, "no " + key);
  }
  const std::string& asked() const { return asked_; }

 private:
  const std::string outcome_, rank_0_;
  std::string claims_, asked_;
};

TEST_F(Strangers, WhoSayThatAllAreOnOneHostNeedAProof) {
  Claims other = Claims::own({}, "/nowhere/world.1");
  Forged bulletin("yes\nab 2", other.to_text());
  EXPECT_THAT(join_with(bulletin).message(), HasSubstr("rank 0 has said of the hosts: ab 2"));
}

TEST_F(Strangers, WhoForgeTheOutcomeLureNoSecretFromTheStore) {
  for (const std::string outcome :
       {"yes\n", "yes\nab", "yes\nab 1", "yes\nab 1 1 1", "yes\nab -1 3", "yes\nab 0 2",
        "yes\nab 2", "yes\n../x 1 1", "yes\nab 1 1", "no\nrefused: forged"}) {
    Forged bulletin(outcome);
    EXPECT_FALSE(join_with(bulletin).ok()) << outcome;
    EXPECT_EQ(bulletin.asked().find("ticket"), std::string::npos) << outcome;
  }
}

}  // namespace
}  // namespace stormo::comm
