#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stormo/membership/etcd_message.h>

#include <nlohmann/json.hpp>

namespace stormo::membership {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::string kHeader =
    R"("header":{"cluster_id":"1","member_id":"2","revision":"5","raft_term":"2"})";

std::string with_header(const std::string& rest) { return "{" + kHeader + rest + "}"; }

TEST(EtcdMessageTest, AsksForAKey) {
  EXPECT_EQ(json::parse(etcd_read("k")), json::parse(R"({"key":"aw=="})"));
}

TEST(EtcdMessageTest, ChangesAKeyIfItHasTheVersion) {
  EXPECT_EQ(json::parse(etcd_change("k", 3, std::string("\0\xff", 2))), json::parse(R"({
    "compare": [{"key": "aw==", "target": "VERSION", "result": "EQUAL", "version": "3"}],
    "success": [{"request_put": {"key": "aw==", "value": "AP8="}}],
    "failure": [{"request_range": {"key": "aw=="}}]})"));
}

TEST(EtcdMessageTest, AKeyIsThereOrNot) {
  EXPECT_EQ(*etcd_read_answer(with_header("")), EtcdKey{});
  EXPECT_EQ(*etcd_read_answer(with_header(
                R"(,"kvs":[{"key":"aw==","version":"18446744073709551615","value":"AP8="}])")),
            (EtcdKey{.version = 18446744073709551615U, .value = std::string("\0\xff", 2)}));
  // an empty value is left out
  EXPECT_EQ(*etcd_read_answer(with_header(R"(,"kvs":[{"key":"aw==","version":"1"}])")),
            EtcdKey{.version = 1});
}

TEST(EtcdMessageTest, ValuesOfAllLengthsComeBack) {
  std::string value;
  for (int i = 0; i < 300; ++i) {
    const json put = json::parse(etcd_change("k", 0, value))["success"][0]["request_put"];
    const auto answer = etcd_read_answer(
        with_header(",\"kvs\":[{\"version\":\"1\",\"value\":" + put["value"].dump() + "}]"));
    ASSERT_TRUE(answer.ok()) << answer.status().to_string();
    EXPECT_EQ(answer->value, value);
    value += static_cast<char>(i);
  }
}

TEST(EtcdMessageTest, AChangeIsDoneOrThereIsAnother) {
  EXPECT_EQ(*etcd_change_answer(with_header(
                R"(,"succeeded":true,"responses":[{"response_put":{"header":{"revision":"2"}}}])")),
            EtcdChange{.done = true});
  EXPECT_EQ(*etcd_change_answer(with_header(
                R"(,"responses":[{"response_range":{"kvs":[{"version":"7","value":"YQ=="}]}}])")),
            (EtcdChange{.present = {.version = 7, .value = "a"}}));
  EXPECT_EQ(*etcd_change_answer(with_header(R"(,"responses":[{"response_range":{}}])")),
            EtcdChange{});
}

TEST(EtcdMessageTest, LogsIn) {
  EXPECT_EQ(json::parse(etcd_login("me", "a\"b")),
            json::parse(R"({"name":"me","password":"a\"b"})"));
  EXPECT_EQ(etcd_login_answer(with_header(R"(,"token":"IEt.14")")).value(), "IEt.14");
}

TEST(EtcdMessageTest, WhatIsNotEtcdsIsRefused) {
  for (const std::string& text :
       {std::string(), std::string("<html>"), std::string("[]"), std::string("{}"),
        std::string(R"({"header":{}})"), std::string(100, '['), with_header(R"(,"kvs":{})"),
        with_header(R"(,"kvs":[1])"), with_header(R"(,"kvs":[{"value":"YQ=="}])"),
        with_header(R"(,"kvs":[{"version":"0"}])"), with_header(R"(,"kvs":[{"version":"-1"}])"),
        with_header(R"(,"kvs":[{"version":1}])"),
        with_header(R"(,"kvs":[{"version":"1","value":"Y"}])"),
        with_header(R"(,"kvs":[{"version":"1","value":"Y$=="}])"),
        with_header(R"(,"kvs":[{"version":"1"},{"version":"1"}])")}) {
    EXPECT_EQ(etcd_read_answer(text).status().code(), Code::kRefused) << text;
    EXPECT_EQ(etcd_change_answer(text).status().code(), Code::kRefused) << text;
    EXPECT_EQ(etcd_login_answer(text).status().code(), Code::kRefused) << text;
  }
  for (const char* rest : {R"(,"responses":[])", R"(,"responses":[{}])",
                           R"(,"responses":[{"response_range":1}])", R"(,"succeeded":1)"}) {
    EXPECT_EQ(etcd_change_answer(with_header(rest)).status().code(), Code::kRefused) << rest;
  }
  for (const char* rest : {"", R"(,"token":1)", R"(,"token":"")", R"(,"token":"a\r\nHost: b")"}) {
    EXPECT_EQ(etcd_login_answer(with_header(rest)).status().code(), Code::kRefused) << rest;
  }
}

TEST(EtcdMessageTest, TellsItsErrors) {
  EXPECT_EQ(
      etcd_error(
          R"({"error":"etcdserver: permission denied","message":"etcdserver: permission denied","code":7})"),
      "etcdserver: permission denied");
  for (const char* other :
       {"", "Not Found", "{}", R"({"error":"no"})", R"({"error":1,"code":1})"}) {
    EXPECT_EQ(etcd_error(other), "") << other;
  }
}

}  // namespace
}  // namespace stormo::membership
