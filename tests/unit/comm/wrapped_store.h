#pragma once

#include <memory>
#include <string>
#include <utility>

#include <stormo/transport/store/store.h>

namespace stormo::comm {

/// A session with the Store of which a test changes some calls.
class WrappedStore : public transport::StoreClient {
 public:
  explicit WrappedStore(std::unique_ptr<transport::StoreClient> store) : store_(std::move(store)) {}

  Result<std::string> get(std::string_view key, Deadline by) override {
    return store_->get(key, by);
  }
  Status set(std::string_view key, std::string_view value, Deadline by) override {
    return store_->set(key, value, by);
  }
  Result<std::string> set_if_absent(std::string_view key, std::string_view value,
                                    Deadline by) override {
    return store_->set_if_absent(key, value, by);
  }
  Status erase(std::string_view key, Deadline by) override { return store_->erase(key, by); }
  Status erase_if(std::string_view key, std::string_view value, Deadline by) override {
    return store_->erase_if(key, value, by);
  }
  Result<std::string> append(std::string_view key, std::string_view text, Deadline by) override {
    return store_->append(key, text, by);
  }
  Status watch(std::string_view key, std::function<void(std::string_view)> callback) override {
    return store_->watch(key, std::move(callback));
  }
  Status set_will(std::string_view key, std::string_view value, Duration silence,
                  Deadline by) override {
    return store_->set_will(key, value, silence, by);
  }
  void set_note_source(std::function<std::string()> source) override {
    store_->set_note_source(std::move(source));
  }
  void on_lost(std::function<void(Status)> callback) override {
    store_->on_lost(std::move(callback));
  }
  Status goodbye(Deadline by) override { return store_->goodbye(by); }
  std::string local_address() const override { return store_->local_address(); }

 private:
  const std::unique_ptr<transport::StoreClient> store_;
};

}  // namespace stormo::comm
