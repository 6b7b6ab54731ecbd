------------------------------- MODULE Chain -------------------------------
(* The chain of done markers of one Kafka partition, its writers, loaders and *)
(* operator. README.md says what is left out and which code each action       *)
(* stands for.                                                                *)
(*                                                                            *)
(* The consumer group is not modeled: every writer believes at any time that *)
(* the partition is its own. So each of them is a zombie to the others, and   *)
(* nothing rests on Kafka's fencing.                                          *)
EXTENDS Naturals, FiniteSets

CONSTANTS
  Writers, Loaders,
  End,            \* Kafka holds the records [0, End)
  Lengths,        \* how many positions a flush may cover
  MostFaults,     \* how often processes die, or give a request up
  MostLate,       \* claims whose senders no longer wait, and that may still arrive
  MostRewinds,    \* an operator's
  Broken          \* the one rule that is not kept, or "nothing"

VARIABLES
  done,           \* the markers in the stage, at most one of a name
  aside,          \* the names that an operator has put aside: copies below stray/
  late,           \* claims that may arrive at any later time
  writer, loader,
  rewind,         \* what an operator is doing
  origin,         \* where a chain without markers begins, if that is recorded
  position,       \* the table's txn action: the next position wanted
  rows,           \* how often the table has each position
  faults, rewinds,
  trunk,          \* for the properties: the markers of the one true chain
  begun,          \* for the properties: whether there ever was a marker
  unseen          \* for the properties: claims whose writers did not look afterward

vars == <<done, aside, late, writer, loader, rewind, origin, position, rows, faults, rewinds, trunk, begun, unseen>>

Nowhere == End + 1
NoMarker == [start |-> Nowhere, end |-> Nowhere, previous |-> Nowhere, by |-> "none"]

Name(marker) == IF Broken = "markers are named by their starts" THEN marker.end ELSE marker.start
Names(markers) == {Name(marker) : marker \in markers}
Starts(markers) == {marker.start : marker \in markers}
Highest(markers) == CHOOSE marker \in markers : \A other \in markers : Name(other) <= Name(marker)
EndOf(markers) == (CHOOSE marker \in markers : \A other \in markers : other.end <= marker.end).end
Linked(marker, markers) == \E other \in markers : other.start = marker.previous /\ other.end = marker.start
Lowest(markers) == CHOOSE marker \in markers : \A other \in markers : Name(other) >= Name(marker)
HasName(markers, name) == \E marker \in markers : Name(marker) = name

\* Where a writer begins that finds no marker: the stream's start is "latest", so without an origin it is Kafka's end.
Start == IF origin # Nowhere THEN origin ELSE IF begun THEN End ELSE 0

Away == [phase |-> "away", tail |-> NoMarker, at |-> Nowhere, claim |-> NoMarker]
Idle == [phase |-> "idle", plan |-> NoMarker, from |-> Nowhere, going |-> {}]
NoRewind == [phase |-> "none", going |-> {}, gone |-> {}, to |-> Nowhere]

Init ==
  /\ done = {} /\ aside = {} /\ late = {}
  /\ writer = [w \in Writers |-> Away]
  /\ loader = [l \in Loaders |-> Idle]
  /\ rewind = NoRewind
  /\ position = 0 /\ rows = [p \in 0..(End - 1) |-> 0]
  /\ faults = 0 /\ rewinds = 0 /\ trunk = {} /\ origin = Nowhere /\ begun = FALSE /\ unseen = {}

------------------------------------------------------------------------------
(* The store. *)

\* With what goes on from it already: a chain is known by its links alone.
RECURSIVE Joined(_, _)
Joined(markers, others) ==
  LET more == {other \in others : other.start = EndOf(markers) /\ Linked(other, markers)}
  IN IF more = {} THEN markers ELSE Joined(markers \cup more, others \ more)

Free(claim) == ~HasName(done, Name(claim)) \/ Broken = "a claim is exclusive"

Created(claim) ==
  /\ done' = {marker \in done : Name(marker) # Name(claim)} \cup {claim}
  /\ trunk' = IF IF trunk = {} THEN ~begun ELSE claim.start = EndOf(trunk)
              THEN Joined((trunk \cap done') \cup {claim}, done' \ trunk)
              ELSE trunk \cap done'
  /\ begun' = TRUE

\* One goes, and what goes on from it is none of the true chain's.
Undone(marker) ==
  trunk' = IF marker \in trunk THEN {other \in trunk : other.end <= marker.start} ELSE trunk \cap done'

------------------------------------------------------------------------------
(* Writers. *)

ReadChain(w) ==
  /\ writer[w].phase = "away"
  /\ LET tail == IF done = {} THEN NoMarker ELSE Highest(done)
         at == IF done = {} THEN Start ELSE tail.end
     IN writer' = [writer EXCEPT ![w] = [phase |-> "ready", tail |-> tail, at |-> at, claim |-> NoMarker]]
  /\ UNCHANGED <<done, aside, late, loader, rewind, origin, position, rows, faults, rewinds, trunk, begun, unseen>>

Send(w) ==
  /\ writer[w].phase = "ready" /\ writer[w].at < End
  /\ \E end \in {writer[w].at + length : length \in Lengths} \cap (0..End) :
       writer' = [writer EXCEPT ![w].phase = "sent", ![w].claim =
         [start |-> writer[w].at, end |-> end, previous |-> writer[w].tail.start, by |-> w]]
  /\ UNCHANGED <<done, aside, late, loader, rewind, origin, position, rows, faults, rewinds, trunk, begun, unseen>>

\* Records never end in Kafka as they do here: the next one brings a claim that is withdrawn, and this.
NoticeRewind(w) ==
  /\ writer[w].phase = "ready" /\ writer[w].at = End /\ writer[w].tail \notin done
  /\ rewind.phase = "none" /\ rewinds > 0
  /\ writer' = [writer EXCEPT ![w] = Away]
  /\ UNCHANGED <<done, aside, late, loader, rewind, origin, position, rows, faults, rewinds, trunk, begun, unseen>>

\* The request arrives and is answered; a copy of it may arrive again.
Answer(w) ==
  /\ writer[w].phase = "sent"
  /\ LET claim == writer[w].claim IN
       /\ \/ late' = late
          \/ faults < MostFaults /\ Cardinality(late) < MostLate /\ late' = late \cup {claim}
       /\ faults' = IF late' = late THEN faults ELSE faults + 1
       /\ IF Free(claim) \/ claim \in done
          THEN /\ IF claim \in done THEN UNCHANGED <<done, trunk, begun>> ELSE Created(claim)
               /\ writer' = [writer EXCEPT ![w].phase = "made"]
          ELSE /\ UNCHANGED <<done, trunk, begun>>
               /\ writer' = [writer EXCEPT ![w] =
                    IF Broken = "after a lost claim the chain is read again"
                    THEN [phase |-> "ready", tail |-> claim, at |-> claim.end, claim |-> NoMarker]
                    ELSE Away]
  /\ UNCHANGED <<aside, loader, rewind, origin, position, rows, rewinds, unseen>>

IsThere(tail) ==
  IF Broken = "the previous marker is identified by its bytes" THEN HasName(done, Name(tail)) ELSE tail \in done

\* Whether a claim was of a position that no writer had claimed before.
IsContinued(claim, tail) ==
  LET highest == \A other \in done : Name(other) <= Name(claim) IN
  CASE Broken = "a claim is checked afterward" -> TRUE
    [] tail = NoMarker -> highest \/ Broken = "a first claim is checked too"
    [] OTHER -> IsThere(tail) /\ (highest \/ Broken = "nothing may be above a claim")

MustWithdraw(claim, tail) ==
  /\ Broken # "a claim behind a rewind is withdrawn"
  /\ tail # NoMarker /\ ~IsThere(tail) /\ tail \in aside
  /\ done \ {claim} # {} \/ origin # Nowhere

CheckAfterClaim(w) ==
  /\ writer[w].phase = "made"
  /\ LET claim == writer[w].claim
         tail == writer[w].tail
     IN IF MustWithdraw(claim, tail)
        THEN /\ done' = done \ {claim}
             /\ Undone(claim)
             /\ writer' = [writer EXCEPT ![w] = Away]
        ELSE /\ UNCHANGED <<done, trunk>>
             /\ writer' = [writer EXCEPT ![w] =
                  IF IsContinued(claim, tail)
                  THEN [phase |-> "ready", tail |-> claim, at |-> claim.end, claim |-> NoMarker]
                  ELSE Away]
  /\ UNCHANGED <<aside, late, loader, rewind, origin, position, rows, faults, rewinds, begun, unseen>>

\* It dies, is paused, or hears nothing. What it has sent may still arrive, and may not.
Fail(w) ==
  /\ faults < MostFaults /\ writer[w].phase # "away"
  /\ faults' = faults + 1
  /\ \/ late' = late
     \/ /\ writer[w].phase = "sent" /\ Cardinality(late) < MostLate
        /\ late' = late \cup {writer[w].claim}
  /\ writer' = [writer EXCEPT ![w] = Away]
  /\ unseen' = IF writer[w].phase = "made" THEN unseen \cup {writer[w].claim} ELSE unseen
  /\ UNCHANGED <<done, aside, loader, rewind, origin, position, rows, rewinds, trunk, begun>>

Arrive(claim) ==
  /\ claim \in late
  /\ late' = late \ {claim}
  /\ IF Free(claim)
     THEN Created(claim) /\ unseen' = unseen \cup {claim}
     ELSE UNCHANGED <<done, trunk, begun, unseen>>
  /\ UNCHANGED <<aside, writer, loader, rewind, origin, position, rows, faults, rewinds>>

------------------------------------------------------------------------------
(* Loaders. *)

\* Of a marker that straddles the position the rows beyond it are loaded.
Loadable ==
  LET next == {marker \in done : marker.start <= position /\ position < marker.end}
      further == {marker \in done : marker.start > position}
  IN IF next = {} /\ Broken = "a gap holds its partition" /\ further # {} THEN {Lowest(further)} ELSE next

Plan(l) ==
  /\ loader[l].phase = "idle"
  /\ \E marker \in Loadable :
       loader' = [loader EXCEPT ![l] = [Idle EXCEPT !.phase = "planned", !.plan = marker, !.from = position]]
  /\ UNCHANGED <<done, aside, late, writer, rewind, origin, position, rows, faults, rewinds, trunk, begun, unseen>>

Commit(l) ==
  /\ loader[l].phase = "planned"
  /\ LET plan == loader[l].plan
         from == IF Broken = "loaded rows of an overlapping marker are left out" THEN plan.start ELSE loader[l].from
     IN IF position = loader[l].from \/ Broken = "txn versions are compared"
        THEN /\ rows' = [p \in DOMAIN rows |->
                  rows[p] + IF from <= p /\ plan.start <= p /\ p < plan.end THEN 1 ELSE 0]
             /\ position' = plan.end
        ELSE UNCHANGED <<rows, position>>
  /\ loader' = [loader EXCEPT ![l] = Idle]
  /\ UNCHANGED <<done, aside, late, writer, rewind, origin, faults, rewinds, trunk, begun, unseen>>

\* A listing shows what may go; the deletes follow one after the other, regardless of what happens meanwhile.
Finished ==
  LET last == IF Broken = "the last marker stays" \/ done = {} THEN {} ELSE {Highest(done)}
      covered == {marker \in done : marker.end <= position} \ last
  IN IF Broken = "settling is from the low end"
     THEN covered
     ELSE {marker \in covered : \A lower \in done : Name(lower) < Name(marker) => lower \in covered}

List(l) ==
  /\ loader[l].phase = "idle" /\ Finished # {}
  /\ loader' = [loader EXCEPT ![l] =
       [Idle EXCEPT !.phase = "settling", !.going = Names(Finished)]]
  /\ UNCHANGED <<done, aside, late, writer, rewind, origin, position, rows, faults, rewinds, trunk, begun, unseen>>

Delete(l) ==
  /\ loader[l].phase = "settling"
  /\ \E name \in loader[l].going :
       /\ Broken = "settling is from the low end" \/ \A other \in loader[l].going : name <= other
       /\ done' = {marker \in done : Name(marker) # name}
       /\ trunk' = trunk \cap done'
       /\ loader' = [loader EXCEPT ![l] =
            IF loader[l].going = {name} THEN Idle ELSE [loader[l] EXCEPT !.going = @ \ {name}]]
  /\ UNCHANGED <<aside, late, writer, rewind, origin, position, rows, faults, rewinds, begun, unseen>>

FailLoader(l) ==
  /\ faults < MostFaults /\ loader[l].phase # "idle"
  /\ faults' = faults + 1
  /\ loader' = [loader EXCEPT ![l] = Idle]
  /\ UNCHANGED <<done, aside, late, writer, rewind, origin, position, rows, rewinds, trunk, begun, unseen>>

------------------------------------------------------------------------------
(* The operator. *)

\* To the end of a marker that stays, and not below the table. That end becomes the origin before anything goes.
BeginRewind ==
  /\ rewinds < MostRewinds /\ rewind.phase = "none"
  /\ \E kept \in done :
       LET going == {marker \in done : marker.end > kept.end} IN
       /\ kept.end >= position /\ going # {}
       /\ rewind' = [phase |-> "going", going |-> going, gone |-> Starts(going), to |-> kept.end]
       /\ aside' = aside \cup going
       /\ origin' = IF Broken = "a rewind records where the chain continues" THEN origin ELSE kept.end
  /\ rewinds' = rewinds + 1
  /\ UNCHANGED <<done, late, writer, loader, position, rows, faults, trunk, begun, unseen>>

\* Highest first.
PutAside ==
  /\ rewind.phase = "going" /\ rewind.going # {}
  /\ LET marker == Highest(rewind.going) IN
       /\ done' = {other \in done : Name(other) # Name(marker)}
       /\ Undone(marker)
       /\ rewind' = [rewind EXCEPT !.going = @ \ {marker}]
  /\ UNCHANGED <<aside, late, writer, loader, origin, position, rows, faults, rewinds, begun, unseen>>

\* What running writers added behind it meanwhile.
PutLateAside ==
  /\ rewind.phase = "going" /\ rewind.going = {}
  /\ LET more == {marker \in done :
         /\ marker.previous \in rewind.gone /\ ~Linked(marker, done)
         /\ marker.start > rewind.to \/ Broken = "a rewind keeps what is below it"}
     IN
       IF more = {}
       THEN rewind' = NoRewind /\ UNCHANGED aside
       ELSE /\ rewind' = [rewind EXCEPT !.going = more, !.gone = @ \cup Starts(more)]
            /\ aside' = aside \cup more
  /\ UNCHANGED <<done, late, writer, loader, origin, position, rows, faults, rewinds, trunk, begun, unseen>>

------------------------------------------------------------------------------

Write(w) == ReadChain(w) \/ NoticeRewind(w) \/ Send(w) \/ Answer(w) \/ CheckAfterClaim(w)
Load(l) == Plan(l) \/ Commit(l)
Settle(l) == List(l) \/ Delete(l)
Operate == PutAside \/ PutLateAside

Next ==
  \/ \E w \in Writers : Write(w) \/ Fail(w)
  \/ \E claim \in late : Arrive(claim)
  \/ \E l \in Loaders : Load(l) \/ Settle(l) \/ FailLoader(l)
  \/ BeginRewind \/ Operate

\* Who can go on does, sooner or later. Late claims need not arrive; loaders need not settle.
Fairness ==
  /\ \A w \in Writers : WF_vars(Write(w))
  /\ \A l \in Loaders : SF_vars(Plan(l)) /\ WF_vars(Commit(l)) /\ WF_vars(Delete(l))
  /\ WF_vars(Operate)

Spec == Init /\ [][Next]_vars
FairSpec == Spec /\ Fairness

------------------------------------------------------------------------------
(* Safety. *)

\* The table has no position twice and misses none below its own.
EachPositionOnce == \A p \in DOMAIN rows : rows[p] = IF p < position THEN 1 ELSE 0

\* The marker with the highest name is the true chain's last: no stray is ever continued. Where a rewind and settling
\* together left none of the chain, nothing is missing below it.
\* A rewind makes strays of what writers claim behind it meanwhile, until they look; who died does not.
Checked(marker) == marker \notin unseen /\ \A w \in Writers : writer[w].phase = "made" => writer[w].claim # marker
Behind == \E marker \in done \ trunk : Linked(marker, aside) /\ ~Checked(marker)
WithoutGap == \A p \in position..(Highest(done).end - 1) : \E marker \in done : marker.start <= p /\ p < marker.end
StraysEnd == rewind.phase = "none" /\ ~Behind /\ done # {} =>
  Highest(done) \in trunk \/ (trunk = {} /\ WithoutGap)

\* What a writer goes on from goes on from what stands there.
GoesOn(w) == writer[w].phase = "made" /\ writer'[w].phase = "ready"
LinksHold == [][\A w \in Writers : GoesOn(w) =>
  writer[w].claim.previous = Nowhere \/ Linked(writer[w].claim, done)]_vars

\* A settled marker leaves none of its chain below it.
LowEndFirst == [][\A l \in Loaders : loader[l].phase = "settling" /\ loader'[l] # loader[l] =>
  \A marker \in done \ done' : ~Linked(marker, trunk)]_vars

\* A partition without a marker begins where all before is in the table: a chain vanishes only behind an origin.
ChainStays == done = {} => Start <= position

(* Progress: all that Kafka has is loaded, and stays loaded. *)
AllIsLoaded == <>(position = End)
=============================================================================
