package demo

import (
	"container/heap"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
)

// The size of the city.
const (
	drivers = 300
	riders  = 2000
	cities  = 3
)

// Mean times of the city's clock.
const (
	meanIdle = 5 * time.Minute
	meanTrip = 15 * time.Minute
)

// begin is when the city's clock starts: bodies depend on the seed alone.
var begin = time.Date(2026, 3, 1, 6, 0, 0, 0, time.UTC)

// Trip is one trip, from its request to its end.
type Trip struct {
	Row     uuid.UUID
	Rider   uuid.UUID
	Driver  uuid.UUID
	City    uuid.UUID
	Created time.Time // when it was requested, by the city's clock
	Ended   time.Time
	// Cents is the fare.
	Cents int64
	Km    float64
	// NoteAfter and AdjustAfter are how long after its end, by the city's
	// clock, a note and a fare adjustment arrive; zero: never.
	NoteAfter, AdjustAfter time.Duration
	AdjustCents            int64
}

// base is the body of a trip's BASE cell.
type base struct {
	Rider   uuid.UUID `json:"rider_uuid"`
	Driver  uuid.UUID `json:"driver_partner_uuid"`
	City    uuid.UUID `json:"city_uuid"`
	Created time.Time `json:"trip_created_at"`
	Ended   time.Time `json:"trip_ended_at"`
	Km      float64   `json:"distance_km"`
	Fare    string    `json:"fare"`
}

// Base returns the body of the trip's BASE cell.
func (t *Trip) Base() []byte {
	return mustJSON(base{t.Rider, t.Driver, t.City, t.Created, t.Ended, t.Km, money(t.Cents)})
}

// Note returns the body of the trip's NOTES cell.
func (t *Trip) Note() []byte {
	return mustJSON(map[string]any{"by": t.Rider, "text": "I left my umbrella in the car"})
}

// Adjustment returns the body of the trip's FARE_ADJUSTMENT cell.
func (t *Trip) Adjustment() []byte {
	return mustJSON(map[string]any{"by": "support", "amount": money(t.AdjustCents), "reason": "a detour"})
}

func money(cents int64) string {
	sign := ""
	if cents < 0 {
		sign, cents = "-", -cents
	}
	return fmt.Sprintf("%s%d.%02d", sign, cents/100, cents%100)
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain values only
	}
	return b
}

// City makes the trips of a seed, in the order of their ends.
type City struct {
	rnd    *rand.Rand
	cars   carHeap
	riders []uuid.UUID
}

// NewCity returns the city of a seed.
func NewCity(seed uint64) *City {
	c := &City{rnd: rand.New(rand.NewPCG(seed, 0x7269646573))}
	var towns []uuid.UUID
	for range cities {
		towns = append(towns, c.uuid())
	}
	for range riders {
		c.riders = append(c.riders, c.uuid())
	}
	for i := range drivers {
		car := &car{driver: c.uuid(), city: towns[i%cities]}
		c.drive(car, begin.Add(-time.Duration(c.rnd.Int64N(int64(meanIdle+meanTrip)))))
		c.cars = append(c.cars, car)
	}
	heap.Init(&c.cars)
	return c
}

// Speed returns how much faster than life the city must run to end so many
// trips a second.
func Speed(perSecond float64) float64 {
	return perSecond * (meanIdle + meanTrip).Seconds() / drivers
}

// Next returns the trip that ends next.
func (c *City) Next() *Trip {
	car := c.cars[0]
	t := car.trip
	c.drive(car, t.Ended)
	heap.Fix(&c.cars, 0)
	return t
}

// drive gives a car that is free from then on its next trip.
func (c *City) drive(car *car, free time.Time) {
	created := free.Add(c.about(meanIdle)).Truncate(time.Millisecond)
	took := c.about(meanTrip)
	t := &Trip{
		Row: c.uuid(), Rider: c.riders[c.rnd.IntN(len(c.riders))], Driver: car.driver, City: car.city,
		Created: created, Ended: created.Add(took).Truncate(time.Millisecond),
		Km: float64(int(took.Minutes()*(30+40*c.rnd.Float64()))) / 100,
	}
	t.Cents = 250 + int64(took.Minutes()*50) + int64(t.Km*90)
	if c.rnd.IntN(5) == 0 {
		t.NoteAfter = time.Minute + time.Duration(c.rnd.Int64N(int64(time.Hour)))
	}
	if c.rnd.IntN(20) == 0 {
		t.AdjustAfter = time.Minute + time.Duration(c.rnd.Int64N(int64(2*time.Hour)))
		t.AdjustCents = -1 - c.rnd.Int64N(t.Cents)
	}
	car.trip = t
}

// about returns a random time from a quarter of the mean to seven quarters.
func (c *City) about(mean time.Duration) time.Duration {
	return mean/4 + time.Duration(c.rnd.Int64N(int64(mean*3/2)))
}

func (c *City) uuid() uuid.UUID {
	var u uuid.UUID
	for i := 0; i < 16; i += 8 {
		v := c.rnd.Uint64()
		for j := range 8 {
			u[i+j] = byte(v >> (8 * j))
		}
	}
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80 // version 4, RFC 9562
	return u
}

// car is a driver with the trip under way.
type car struct {
	driver, city uuid.UUID
	trip         *Trip
}

// carHeap has the car whose trip ends next at its head.
type carHeap []*car

func (h carHeap) Len() int           { return len(h) }
func (h carHeap) Less(i, j int) bool { return h[i].trip.Ended.Before(h[j].trip.Ended) }
func (h carHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *carHeap) Push(x any)        { *h = append(*h, x.(*car)) }
func (h *carHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
