// Limits the bytes that all requests hold together and those that one party holds, because limiting the number of
// requests does not limit the memory that a client can fill. Thread-safe.
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

  // Holds the bytes of one request; the destructor gives them back. Used by one thread at a time. The budget must
  // outlive it.
  class Hold {
   public:
    Hold(ByteBudget& budget, std::string party) : budget_(budget), party_(std::move(party)) {}
    ~Hold() { (void)resize(0); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    // Makes the request hold `bytes` bytes from now on. Returns false and changes nothing if the budget does not allow
    // it. Shrinking always succeeds.
    [[nodiscard]] bool resize(size_t bytes) { return budget_.change(party_, bytes_, bytes); }
    // Does the same as resize(), but succeeds even beyond the budget. It is for bytes that cannot be refused any more.
    // Until there is room again, every other request to grow is refused.
    void force(size_t bytes) { (void)budget_.change(party_, bytes_, bytes, true); }
    size_t bytes() const { return bytes_; }

   private:
    ByteBudget& budget_;
    const std::string party_;
    size_t bytes_ = 0;
  };

  std::shared_ptr<Hold> hold(const std::string& party) { return std::make_shared<Hold>(*this, party); }
  size_t held() const;
  void set_limit_of_one_party(size_t bytes);  // what is held already stays held

 private:
  bool change(const std::string& party, size_t& bytes, size_t wanted, bool forced = false);

  const size_t total_;
  mutable std::mutex mutex_;
  size_t of_one_party_;
  size_t held_ = 0;
  std::map<std::string, size_t> by_party_;  // only parties that hold something
};

}  // namespace specdec::deploy
