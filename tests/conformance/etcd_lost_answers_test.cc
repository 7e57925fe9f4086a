// What a caller learns when an answer of etcd is lost, and what it makes of others' answers.
#include <gmock/gmock.h>
#include <stormo/membership/etcd_register.h>

#include <atomic>
#include <functional>

#include "tests/conformance/etcd_cluster.h"
#include "tests/conformance/http_stand_in.h"
#include "tests/conformance/register_records.h"

namespace stormo::membership::test {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr const char* kChange = "/v3/kv/txn";

EtcdRegister register_at(std::vector<transport::HostPort> endpoints) {
  return EtcdRegister({.endpoints = std::move(endpoints), .key = "/test/digits"});
}

/// A line to an etcd. A change is given to `lose` first, with a function that brings it to etcd;
/// true: its caller gets no answer.
class LineToEtcd : public NeedsEtcd {
 protected:
  using Lose = std::function<bool(int number, const std::function<void()>& bring)>;

  void SetUp() override {
    NeedsEtcd::SetUp();
    if (IsSkipped()) return;
    etcd_ = std::make_unique<EtcdCluster>(1);
    direct_ = etcd_->client();
  }
  EtcdRegister over_line(Lose lose) {
    line_ = std::make_unique<HttpStandIn>(
        [this, lose = std::move(lose)](const HttpStandIn::Request& request) -> std::string {
          const auto bring = [&] { return etcd_->post(0, request.path, request.body); };
          if (request.path == kChange && lose(++changes_, bring)) return "";
          return HttpStandIn::http(200, bring());
        });
    return register_at({line_->address()});
  }

  std::unique_ptr<EtcdCluster> etcd_;
  std::unique_ptr<Register> direct_;
  std::atomic<int> changes_{0};
  std::unique_ptr<HttpStandIn> line_;
};

TEST_F(LineToEtcd, AChangeWhoseAnswerWasLostIsDone) {
  EtcdRegister reg = over_line([](int number, const auto& bring) {
    if (number == 1) bring();
    return number == 1;
  });
  const auto swap = reg.compare_and_swap(record(1, 1), soon());
  ASSERT_TRUE(swap.ok()) << swap.status().to_string();
  EXPECT_EQ(changes_, 2);
  EXPECT_TRUE(swap->done);
  EXPECT_EQ(swap->present, record(1, 1));
  EXPECT_EQ(*direct_->read(soon()), record(1, 1));
}

TEST_F(LineToEtcd, ChangesThatWereLostThemselvesAreMadeAgain) {
  EtcdRegister reg = over_line([](int number, const auto&) { return number < 4; });
  EXPECT_TRUE(reg.compare_and_swap(record(1, 1), soon())->done);
  EXPECT_EQ(changes_, 4);
  EXPECT_EQ(*direct_->read(soon()), record(1, 1));
}

TEST_F(LineToEtcd, TheSameRecordOfAnotherIsNotDone) {
  EtcdRegister reg = over_line([this](int number, const auto&) {
    if (number == 1) {
      EXPECT_TRUE(direct_->compare_and_swap(record(1, 1), soon())->done);
    }
    return number == 1;
  });
  const auto swap = reg.compare_and_swap(record(1, 1), soon());
  ASSERT_TRUE(swap.ok()) << swap.status().to_string();
  EXPECT_EQ(changes_, 2);
  EXPECT_FALSE(swap->done);
  EXPECT_EQ(swap->present, record(1, 1));
}

TEST_F(LineToEtcd, LaterRecordsHideWhatBecameOfIt) {
  EtcdRegister reg = over_line([this](int number, const auto& bring) {
    if (number == 1) {
      bring();
      EXPECT_TRUE(direct_->compare_and_swap(record(2, 22), soon())->done);
    }
    return number == 1;
  });
  const Status why = reg.compare_and_swap(record(1, 1), soon()).status();
  EXPECT_EQ(changes_, 2);
  EXPECT_EQ(why.code(), Code::kCancelled) << why.to_string();
  EXPECT_THAT(why.message(), HasSubstr("whether epoch 1 was or will be this record"));
}

TEST_F(LineToEtcd, AChangeThatMayComeYetIsNotDenied) {
  EtcdRegister reg = over_line([](int number, const auto&) { return number == 1; });
  // its first request, which waits somewhere, would succeed after somebody writes epoch 1
  const Status why = reg.compare_and_swap(record(2, 2), soon()).status();
  EXPECT_EQ(why.code(), Code::kCancelled) << why.to_string();
  EXPECT_EQ(direct_->read(soon())->epoch, 0U);
}

TEST_F(LineToEtcd, WithoutAnyAnswerTheOutcomeIsUnknown) {
  EtcdRegister reg = over_line([](int, const auto& bring) {
    bring();
    return true;
  });
  const Status why = reg.compare_and_swap(record(1, 1), Deadline::after(500ms)).status();
  EXPECT_EQ(why.code(), Code::kDeadlineExceeded) << why.to_string();
  EXPECT_THAT(why.message(), HasSubstr("the change may take place all the same: read again"));
  EXPECT_EQ(*reg.read(soon()), record(1, 1));
}

TEST_F(LineToEtcd, OnlyTheRegisterWritesItsKey) {
  ASSERT_TRUE(direct_->compare_and_swap(record(1, 1), soon())->done);
  const std::string key = R"({"key":"L3Rlc3QvZGlnaXRz")";  // "/test/digits"
  const std::string found = etcd_->post(0, "/v3/kv/range", key + "}");
  const std::size_t value = found.find(R"("value":)");
  ASSERT_NE(value, std::string::npos) << found;
  etcd_->post(0, "/v3/kv/put", key + "," + found.substr(value, found.find('}', value) + 1 - value));
  EXPECT_THAT(direct_->read(soon()).status().message(),
              HasSubstr("it has the record of epoch 1 as version 2"));
  etcd_->post(0, "/v3/kv/put", key + R"(,"value":"b3RoZXI="})");
  EXPECT_EQ(direct_->read(soon()).status().code(), Code::kCorrupt);
  EXPECT_EQ(direct_->compare_and_swap(record(2, 2), soon()).status().code(), Code::kCorrupt);
}

TEST_F(LineToEtcd, AnEndpointThatIsNoEtcdIsPassedOver) {
  HttpStandIn other([](const auto&) { return HttpStandIn::http(404, "Not Found"); });
  EtcdRegister reg = register_at({other.address(), etcd_->endpoints()[0]});
  const auto swap = reg.compare_and_swap(record(1, 1), soon());
  ASSERT_TRUE(swap.ok()) << swap.status().to_string();
  EXPECT_TRUE(swap->done);
}

TEST(NoEtcdTest, WhatIsNoEtcdIsToldAtOnce) {
  for (const auto& [answer, why] : std::vector<std::pair<std::string, std::string>>{
           {HttpStandIn::http(404, "Not Found\nor so"),
            "HTTP 404 (Not Found): it is no etcd of version 3.4 or newer"},
           {HttpStandIn::http(301, ""), "HTTP 301 (): it is no etcd"},
           {HttpStandIn::http(200, "<html>"), "what it answers is not etcd's: no header"},
           {HttpStandIn::http(200, "{}"), "what it answers is not etcd's: no header"},
           {"SSH-2.0-OpenSSH_9.2\r\n", "Received HTTP/0.9 when not allowed"},
           {HttpStandIn::http(200, std::string(5U << 20, ' ')),
            "it answers more than 4194304 bytes"}}) {
    HttpStandIn other([&](const auto&) { return answer; });
    EtcdRegister reg = register_at({other.address()});
    for (const Status& status :
         {reg.read(soon()).status(), reg.compare_and_swap(record(1, 1), soon()).status()}) {
      EXPECT_EQ(status.code(), Code::kRefused) << status.to_string();
      EXPECT_THAT(status.message(), HasSubstr(transport::to_string(other.address())));
      EXPECT_THAT(status.message(), HasSubstr(why));
    }
  }
}

TEST(NoEtcdTest, WhoHangsUpIsAskedUntilTheDeadline) {
  std::atomic<int> requests{0};
  HttpStandIn other([&](const auto&) {
    ++requests;
    return std::string();
  });
  EtcdRegister reg = register_at({other.address()});
  const Status why = reg.read(Deadline::after(300ms)).status();
  EXPECT_EQ(why.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(why.message(), HasSubstr("Empty reply from server"));
  EXPECT_GE(requests, 1);
}

}  // namespace
}  // namespace stormo::membership::test
