// Limits the memory in bytes that the requests of all parties (tenants), and of one party, may use. A limit on the
// number of requests would not limit the memory that a client can fill. Thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace specdec::deploy {

class ByteBudget {
 public:
  ByteBudget(size_t total, size_t of_one_party) : total_(total), of_one_party_(of_one_party) {}

  // The bytes charged for one request; the destructor releases them. A hold is used by one thread at a time. The budget
  // must outlive the hold.
  class Hold {
   public:
    Hold(ByteBudget& budget, std::string party) : budget_(budget), party_(std::move(party)) {}
    ~Hold() { (void)resize(0); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    // Sets the bytes that are charged for the request. Returns false and changes nothing if the budget does not allow
    // it. A smaller number is always allowed.
    [[nodiscard]] bool resize(size_t bytes) { return budget_.change(party_, bytes_, bytes); }
    // Like resize(), but succeeds even beyond the budget, for memory whose use cannot be refused any more. While the
    // budget is exceeded, other requests cannot grow.
    void force(size_t bytes) { (void)budget_.change(party_, bytes_, bytes, true); }
    size_t bytes() const { return bytes_; }

   private:
    ByteBudget& budget_;
    const std::string party_;
    size_t bytes_ = 0;
  };

  std::shared_ptr<Hold> hold(const std::string& party) { return std::make_shared<Hold>(*this, party); }
  size_t held() const;
  void set_limit_of_one_party(size_t bytes);  // bytes that are charged already stay charged

 private:
  bool change(const std::string& party, size_t& bytes, size_t wanted, bool forced = false);

  const size_t total_;
  mutable std::mutex mutex_;
  size_t of_one_party_;
  size_t held_ = 0;
  std::map<std::string, size_t> by_party_;  // bytes charged per tenant; tenants with 0 have no entry
};

}  // namespace specdec::deploy
