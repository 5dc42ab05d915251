// A client of the server's admin listener (docs/serve.md), which starts trials of candidate drafts, promotes and drops
// them. judge_trial() decides from the scores how a trial ends.
#pragma once

#include <string>

#include "base/json.h"
#include "net/http_client.h"

namespace specdec::monitor {

class Admin {
 public:
  // `address` is http(s)://host:port or unix:PATH. Throws Error(kUsage) for anything else.
  Admin(const std::string& address, const Secret& key);

  struct Reply {
    int status = 0;
    Json body;            // "specdec.draft/1" if the status is 200, else an error object
    std::string problem;  // the server's error message if the status is not 200
  };
  Reply drafts();                  // sends a GET; throws Error(kNetwork) if the server does not answer
  Reply order(const Json& order);  // sends a POST; throws as drafts() does

  // Makes this draft serve all conversations: sends the orders still needed (none, promote, or load and promote), and
  // first drops another draft that is on trial. `id` is the draft's fingerprint. Returns "", or the reason why the
  // draft does not serve all conversations yet.
  std::string serve(const std::string& draft, const std::string& id);
  // Ends the draft's trial if there is one. Returns "", or the reason why that failed.
  std::string drop(const std::string& id);

 private:
  Reply exchange(const std::string* body);
  net::HttpClient client_;
  std::string url_, socket_;
  Secret key_;
};

// Returns the fingerprint of the draft under `which` ("serving" or "candidate") in a reply, "" if there is none.
std::string draft_id_of(const Json& status, const char* which);

// The decision of judge_trial(), and the figures in words.
struct Trial {
  std::string decision, text;
};
// Decides how a trial ends. The decision is "worse" if the candidate's acceptance is certainly below `floor`. Otherwise
// it is "better" if the lower end of the paired difference is above −margin, and "worse" if the upper end is below 0.
// In all other cases it is "", which means to wait. The server's interval stays valid under repeated looks (a betting
// confidence sequence over conversations, on (1 + difference) / 2).
Trial judge_trial(const Json& paired, double margin, double floor);

}  // namespace specdec::monitor
